"""The backend Disk over a real S3 server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import obstore
import pytest
from disk_in_a_folder import JOB, wait_for_writers
from obstore.store import S3Store
from pod_builder import run_config, trainer_environment
from receiver_harness import Receiver, packed, some_weights
from s3_server import BUCKET, S3Server, s3_secret, served_bucket

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.follow.follower import CheckedVersions
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import S3Location
from grpo_runtime.export.s3 import open_bucket
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.disk.backend import StoreReceiver, disk_backend, store_in_bucket
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError, VersionStore
from grpo_runtime.weight_sync.interface import (
    Backend,
    Failures,
    Peer,
    SenderSettings,
    WeightSender,
    WeightSyncError,
)
from grpo_runtime.weight_sync.receiver import StagingReceiver
from grpo_runtime.weight_sync.registry import DISK
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

SECONDS = 30.0


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with served_bucket(tmp_path / "s3") as server:
        yield server


def location_in(server: S3Server) -> S3Location:
    return S3Location(f"s3://{BUCKET}/run-1/weights", endpoint=server.endpoint)


def bucket_of(server: S3Server, folder: Path) -> S3Store:
    return open_bucket(location_in(server), credentials=s3_secret(folder))


def store_of(server: S3Server, folder: Path, *, secret_key: str | None = None) -> VersionStore:
    credentials = s3_secret(folder) if secret_key is None else s3_secret(folder, secret_key=secret_key)
    location = location_in(server)
    return store_in_bucket(location, credentials=credentials, field="weightSync.disk.to")


@pytest.fixture
def store(s3: S3Server, tmp_path: Path) -> VersionStore:
    return store_of(s3, tmp_path / "secret")


def publisher_to(store: VersionStore, *, attempt: int = 1, keep: int = 2) -> Publisher:
    return Publisher(
        store,
        job=JOB,
        attempt=attempt,
        keep=keep,
        model_files=lambda: {"config.json": b"{}"},
        file_bytes=8 * 1024,
    )


@pytest.fixture
async def engines(store: VersionStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Receiver]]:
    """Three engines whose workers read from the bucket."""
    found = {}
    for name in "abc":
        receiver = Receiver("disk")
        settings = receiver.end.settings  # type: ignore[attr-defined]
        receiver._worker.end = StagingReceiver(StoreReceiver(lambda: store), settings)
        found[name] = receiver
    yield found
    for receiver in found.values():
        await receiver.shutdown()


def sender_to(
    backend: Backend[HostCopy], engines: dict[str, Receiver], *, timeout_seconds: float = SECONDS
) -> WeightSender[HostCopy]:
    peers = {name: Peer(receiver, host="127.0.0.1") for name, receiver in engines.items()}
    return backend.make_sender(peers, SenderSettings(Deadlines(timeout_seconds)))


async def sync(sender: WeightSender[HostCopy], weights: HostCopy, *, engines: str) -> Failures:
    for verb in (
        lambda: sender.init(engines),
        lambda: sender.start(engines),
        lambda: sender.update(weights, engines=engines),
        lambda: sender.finish("1.1", engines=engines),
    ):
        if failures := await verb():
            return failures
    return {}


async def test_engines_and_one_that_joins_later_read_the_same_version_from_the_bucket(
    store: VersionStore, engines: dict[str, Receiver]
) -> None:
    publisher = publisher_to(store)
    publisher.begin_attempt()
    backend = disk_backend("bucket", open_store=lambda: store, publisher=publisher)
    assert backend.name_version is not None
    weights = packed(1)
    backend.name_version(weights, PolicyVersion(1, 1))
    for names in ("ab", "c"):
        sender = sender_to(backend, {name: engines[name] for name in names})
        assert await sync(sender, weights, engines=names) == {}
        await sender.shutdown()
    assert all(receiver.serves(some_weights(1)) for receiver in engines.values())
    assert store.folders() == ["version-000001-000001"]
    assert store.read("LATEST") == b"version-000001-000001\n"
    assert store.read("version-000001-000001/config.json") == b"{}"


def publish(publisher: Publisher, step: int, *, attempt: int = 1) -> str:
    copy = packed(step)
    publisher.publish(copy, PolicyVersion(attempt, step))
    return publisher.published(copy).result(SECONDS).name


def test_old_versions_go_and_what_an_attempt_left_unfinished_too(store: VersionStore) -> None:
    publisher = publisher_to(store)
    publisher.begin_attempt()
    names = [publish(publisher, step) for step in (1, 2)]
    with store.writing("version-000001-000003", "model.safetensors") as sink:
        sink.write(memoryview(b"begun"))
    assert store.folders() == names
    second = publisher_to(store, attempt=2)
    second.begin_attempt()
    with pytest.raises(StoreError, match=r"has no version-000001-000003/model\.safetensors"):
        store.read("version-000001-000003/model.safetensors")
    with pytest.raises(Exception, match="attempt 2 has begun"):
        publish(publisher, 4)
    newer = [publish(second, step, attempt=2) for step in (1, 2, 3)]
    wait_for_writers()
    assert store.folders() == newer[-2:]


def test_an_attempt_leaves_alone_what_others_keep_below_its_prefix(s3: S3Server, tmp_path: Path) -> None:
    foreign = ["llama/model.safetensors", "other/version-000001-000001/model.safetensors", "notes/a/b/c.txt"]
    foreign += ["other/attempt-000007", "version-1/x"]
    bucket = bucket_of(s3, tmp_path / "secret")
    for key in foreign:
        obstore.put(bucket, key, b"of somebody else")
    obstore.put(bucket, "version-000001-000003/model.safetensors", b"begun and left")
    publisher = publisher_to(store_of(s3, tmp_path / "secret"), attempt=2)
    publisher.begin_attempt()
    names = [publish(publisher, step, attempt=2) for step in (1, 2, 3)]
    wait_for_writers()
    left = {entry["path"] for page in obstore.list(bucket) for entry in page}
    assert left >= set(foreign)
    assert {key.split("/")[0] for key in left if key.startswith("version-0")} == set(names[-2:])


def test_a_file_whose_writing_fails_is_never_seen(store: VersionStore) -> None:
    with (
        pytest.raises(ValueError, match="in the middle"),
        store.writing("version-000001-000001", "model.safetensors") as sink,
    ):
        sink.write(memoryview(bytes(1000)))
        raise ValueError("in the middle")
    with pytest.raises(StoreError, match="has no"):
        store.read("version-000001-000001/model.safetensors")


async def test_a_store_that_is_gone_fails_a_sync_with_a_sentence_and_a_later_one_works(
    s3: S3Server, store: VersionStore, engines: dict[str, Receiver]
) -> None:
    publisher = publisher_to(store)
    publisher.begin_attempt()
    backend = disk_backend("bucket", open_store=lambda: store, publisher=publisher)
    assert backend.name_version is not None
    s3.stop()
    weights = packed(1)
    backend.name_version(weights, PolicyVersion(1, 1))
    sender = sender_to(backend, {"a": engines["a"]})
    failures = await sync(sender, weights, engines="a")
    assert "could not be written" in str(failures["a"]) and "cannot be reached" in str(failures["a"])
    assert engines["a"].serves(some_weights(0))
    s3.start()
    assert await sync(sender, weights, engines="a") == {}
    assert engines["a"].serves(some_weights(1))
    await sender.shutdown()


async def test_trainer_and_engine_go_on_once_their_credentials_are_renewed(
    s3: S3Server, tmp_path: Path
) -> None:
    ends = ("trainer", "engine")
    of_trainer, of_engine = (store_of(s3, tmp_path / end, secret_key="of-yesterday") for end in ends)
    receiver = Receiver("disk")
    settings = receiver.end.settings  # type: ignore[attr-defined]
    receiver._worker.end = StagingReceiver(StoreReceiver(lambda: of_engine), settings)
    backend = disk_backend("bucket", open_store=lambda: of_engine, publisher=publisher_to(of_trainer))
    assert backend.name_version is not None
    sender, weights = sender_to(backend, {"a": receiver}), packed(1)
    backend.name_version(weights, PolicyVersion(1, 1))
    failures = []
    for end in ends:
        failures.append(str((await sync(sender, weights, engines="a"))["a"]))
        s3_secret(tmp_path / end)
    assert await sync(sender, weights, engines="a") == {}
    assert receiver.serves(some_weights(1))
    assert ["could not be written" in failure for failure in failures] == [True, False]
    assert all("refuses access" in failure for failure in failures)
    await sender.shutdown()
    await receiver.shutdown()


def test_refused_credentials_are_told_with_the_field(s3: S3Server, tmp_path: Path) -> None:
    store = store_of(s3, tmp_path / "wrong", secret_key="another")
    with pytest.raises(StoreError, match=r"refuses access .*weightSync\.disk\.secret"):
        store.folders()


def test_refused_credentials_end_a_run_as_what_no_retry_helps(s3: S3Server, tmp_path: Path) -> None:
    secret = tmp_path / "volumes/secrets/store"
    secret.mkdir(parents=True)
    (secret / "accessKeyId").write_text("somebody")
    (secret / "secretAccessKey").write_text("else")
    disk = {"to": f"s3://{BUCKET}/run-2", "endpoint": s3.endpoint, "secret": "store"}
    environment = trainer_environment(tmp_path, run_config(weightSync={"disk": disk}))
    assert DISK.for_run is not None
    with pytest.raises(UserError, match=r"weightSync\.disk\.to \(s3://.*/run-2\): the store"):
        DISK.for_run(read_trainer_settings(environment), dict)


def test_who_follows_a_bucket_copies_the_newest_version_once_it_is_checked(
    store: VersionStore, tmp_path: Path
) -> None:
    publisher = publisher_to(store)
    here = FolderStore(tmp_path / "here")
    versions = CheckedVersions(store, local=here)
    assert versions.newest() is None
    for step in (1, 2):
        name = publish(publisher, step)
        assert versions.newest() == name
        manifest = versions.fetch(name)
        assert here.folders() == [name]
        copied = {path.name: path.stat().st_size for path in versions.folder_of(name).iterdir()}
        del copied["manifest.json"]
        assert copied == {file: entry.num_bytes for file, entry in manifest.files.items()}
    file = min(manifest.files)
    with store.writing(name, file) as sink:
        sink.write(memoryview(bytes(manifest.files[file].num_bytes)))
    with pytest.raises(WeightSyncError, match="SHA-256 differs"):
        versions.fetch(name)
    assert here.folders() == []
