"""The backend Disk with a slow, full or lost store, a damaged version, and other attempts and jobs."""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disk_in_a_folder import JOB, small_files, wait_for_writers
from fake_engine_server import FakeEngine
from fleet_builder import sync, unsynced_fleet_of, until
from guard_environment import guard_environment
from pod_builder import run_config
from receiver_harness import packed
from skipping_clock import SkippingClock

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.routes import UPDATE_PATH
from grpo_runtime.errors import SupersededError, VolumeFullError
from grpo_runtime.weight_sync.disk.backend import disk_backend
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, OpenFile, StoreError
from grpo_runtime.weight_sync.disk.version import LATEST, parse_manifest
from grpo_runtime.weight_sync.interface import Backend, Receiver, ReceiverSettings, WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

SECONDS = 30.0
NAME = "version-000001-000001"


class _Sink:
    def __init__(self, sink: object, before: Callable[[], None]) -> None:
        self._sink, self._before = sink, before

    def write(self, data: memoryview) -> None:
        self._before()
        self._sink.write(data)  # type: ignore[attr-defined]


class TroubledStore(FolderStore):
    """A folder with something done before each piece is written, and before each file is read."""

    before_piece: Callable[[], None] = staticmethod(lambda: None)
    before_reading: Callable[[], None] = staticmethod(lambda: None)
    before_discard: Callable[[], None] = staticmethod(lambda: None)
    num_readings = 0

    @contextmanager
    def writing(self, folder: str, name: str) -> Iterator[_Sink]:  # type: ignore[override]
        with super().writing(folder, name) as sink:
            yield _Sink(sink, self.before_piece)

    @contextmanager
    def reading(self, path: str) -> Iterator[OpenFile]:  # type: ignore[override]
        self.num_readings += 1
        self.before_reading()
        with super().reading(path) as reading:
            yield reading

    def discard_unfinished(self, folder: str | None = None) -> None:
        self.before_discard()
        super().discard_unfinished(folder)


@pytest.fixture
def store(tmp_path: Path) -> TroubledStore:
    return TroubledStore(tmp_path)


@pytest.fixture(autouse=True)
def of_a_rollout_pod(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that engines are made in."""
    run = run_config(weightSync={"disk": {"to": "pvc://weights/copy"}})
    folder = tmp_path_factory.mktemp("pod")
    for name, value in guard_environment(folder, run_json=run.model_dump_json(by_alias=True)).items():
        monkeypatch.setenv(name, value)


def publisher_to(store: FolderStore, *, attempt: int = 1, job: JobRef = JOB) -> Publisher:
    return Publisher(store, job=job, attempt=attempt, keep=2, file_bytes=8 * 1024)


def published(publisher: Publisher, copy: HostCopy) -> str:
    return publisher.published(copy).result(SECONDS).name


def begun(publisher: Publisher, *, step: int = 1, attempt: int = 1) -> HostCopy:
    copy = packed(step)
    publisher.publish(copy, PolicyVersion(attempt, step))
    return copy


def backend_of(publisher: Publisher, store: FolderStore) -> Backend[HostCopy]:
    return disk_backend("disk", open_store=lambda: FolderStore(store.root), publisher=publisher)


def receivers_of(backend: Backend[HostCopy]) -> Callable[[], Receiver]:
    return lambda: backend.make_receiver(ReceiverSettings(layout={"w": (4,)}))


async def test_a_store_that_stands_still_is_not_taken_for_an_engine_that_does(store: TroubledStore) -> None:
    backend = backend_of(publisher_to(store), store)
    engine, goes_on = FakeEngine("a", make_receiver=receivers_of(backend)), threading.Event()
    async with unsynced_fleet_of(engine, backend=backend, sync_timeout_seconds=0.3) as fleet:
        await until(lambda: fleet.counts().known == 1)
        store.before_piece = lambda: goes_on.wait(SECONDS) and None
        syncing = asyncio.ensure_future(sync(fleet, step=1))
        try:
            await until(lambda: bool(fleet.failed_syncs()))
            failures = {label: last.why for label, last in fleet.failed_syncs().items()}
            members = fleet._roster.members()
            was_paused = engine.vllm.is_paused
        finally:
            goes_on.set()
        assert failures == {"a": failures["a"]}
        assert failures["a"].startswith("write: the store is slow: 0 of 16 bytes of weights 1.1 written, and")
        assert not was_paused
        assert [member.hung_since for member in members] == [None]
        assert (await syncing).synced == ("a",)


async def test_a_store_that_is_slow_and_goes_on_is_waited_for(
    store: TroubledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever more is written, as much time passes as that may take."""
    publisher, clock, loop = publisher_to(store), SkippingClock(monkeypatch), asyncio.get_running_loop()
    seen = [0]

    async def pass_time() -> None:
        num_written = publisher._publication(copy).num_bytes
        if num_written > seen[-1]:
            seen.append(num_written)
            clock.skip(SECONDS)
        # who waits looks at it
        for _ in range(5):
            await asyncio.sleep(0)

    def before_piece() -> None:
        asyncio.run_coroutine_threadsafe(pass_time(), loop).result(SECONDS)

    store.before_piece = before_piece
    copy = begun(publisher)
    assert (await publisher.wait_until_published(copy, stall_seconds=SECONDS)).name == NAME
    assert len(seen) > 3


async def test_an_error_that_does_not_speak_of_the_files_has_none_of_them_read(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    backend = backend_of(publisher, store)
    engine = FakeEngine("a", make_receiver=receivers_of(backend))
    async with unsynced_fleet_of(engine, backend=backend) as fleet:
        await until(lambda: fleet.counts().known == 1)
        calls: list[int] = []

        async def refuse_once() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise WeightSyncError("this engine has no memory left")

        engine.vllm.during[UPDATE_PATH] = refuse_once
        assert (await sync(fleet, step=1)).synced == ("a",)
        assert len(calls) > 1
    assert store.num_readings == 0


def test_files_are_read_again_once_for_all_engines_that_complain(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    copy = begun(publisher)
    published(publisher, copy)
    num_files = len(list((store.root / NAME).iterdir())) - 1
    for _ in range(3):
        publisher.check_again(copy)
        assert published(publisher, copy) == NAME
        publisher.check_again(copy)
    assert store.num_readings == num_files


def test_a_store_that_cannot_be_read_says_nothing_about_a_version(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    copy = begun(publisher)
    published(publisher, copy)
    inode = (store.root / NAME).stat().st_ino

    def gone() -> None:
        raise StoreError("the volume is gone for a moment")

    store.before_reading = gone
    publisher.check_again(copy)
    assert published(publisher, copy) == NAME
    assert (store.root / NAME).stat().st_ino == inode
    # nor that it has been checked: once it can be read, what was torn meanwhile is mended
    store.before_reading = lambda: None
    torn = min((store.root / NAME).glob("model-*.safetensors"))
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1])
    publisher.check_again(copy)
    assert published(publisher, copy) == NAME
    assert torn.read_bytes() == whole


def test_a_second_write_that_fails_leaves_the_first_one(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    copy = begun(publisher)
    published(publisher, copy)
    torn = min((store.root / NAME).glob("model-*.safetensors"))
    whole = hashlib.sha256(torn.read_bytes()).digest()
    torn.write_bytes(torn.read_bytes()[:-1])

    def full() -> None:
        raise VolumeFullError("the volume is full")

    store.before_piece = full
    publisher.check_again(copy)
    with pytest.raises(WeightSyncError, match="could not be written: the volume is full"):
        published(publisher, copy)
    assert (store.root / NAME / "manifest.json").is_file()
    assert list(store.root.glob(".tmp-*")) == []
    store.before_piece = lambda: None
    assert published(publisher, copy) == NAME
    assert hashlib.sha256(torn.read_bytes()).digest() == whole
    assert list(store.root.glob(".tmp-*")) == []


def test_a_volume_too_full_to_remove_from_is_told_to_who_waits(store: TroubledStore) -> None:
    def full() -> None:
        raise VolumeFullError("the volume is full")

    store.before_piece = store.before_discard = full
    publisher = publisher_to(store)
    with pytest.raises(WeightSyncError, match=r"weights 1\.1 could not be written: the volume is full"):
        published(publisher, begun(publisher))


def test_nothing_is_written_to_a_folder_that_a_later_attempt_has_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.begin(NAME)
    with store.writing(NAME, "first") as sink:
        sink.write(memoryview(b"1"))
    FolderStore(tmp_path).discard_unfinished()
    with pytest.raises(StoreError), store.writing(NAME, "second"):
        pass
    with pytest.raises(StoreError):
        store.commit(NAME, last="manifest.json", data=b"{}")
    assert store.folders() == []


def test_a_lower_attempt_commits_nothing_that_it_was_writing(store: TroubledStore) -> None:
    """As in a bucket, where what a later attempt has removed does not keep more from being written."""
    stale, newer = publisher_to(store), publisher_to(FolderStore(store.root), attempt=2)
    stale.begin_attempt()
    began: list[int] = []

    def begin_the_next_once() -> None:
        if not began:
            began.append(1)
            newer._markers.place()

    store.before_piece = begin_the_next_once
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        published(stale, begun(stale))
    assert store.folders() == []


async def test_that_a_later_attempt_has_begun_ends_the_run(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    backend = backend_of(publisher, store)
    engine = FakeEngine("a", make_receiver=receivers_of(backend))
    async with unsynced_fleet_of(engine, backend=backend) as fleet:
        await until(lambda: fleet.counts().known == 1)
        await sync(fleet, step=1)
        publisher_to(FolderStore(store.root), attempt=2).begin_attempt()
        for _ in range(2):
            with pytest.raises(SupersededError, match="attempt 2 has begun"):
                await sync(fleet, step=2)


def test_markers_of_a_job_that_had_the_folder_before_count_for_nothing(tmp_path: Path) -> None:
    before = JobRef(namespace="team", name="other", uid="another-uid")
    publisher_to(FolderStore(tmp_path), attempt=3, job=before).begin_attempt()
    publisher = small_files(tmp_path)
    publisher.begin_attempt()
    assert published(publisher, begun(publisher)) == NAME


def test_of_two_jobs_that_begin_in_one_empty_folder_only_the_later_writes(tmp_path: Path) -> None:
    first = small_files(tmp_path)
    first.begin_attempt()
    other = JobRef(namespace="team", name="other", uid="another-uid")
    second = publisher_to(FolderStore(tmp_path), job=other)
    second.begin_attempt()
    with pytest.raises(SupersededError, match="another job has begun to write"):
        published(first, begun(first))
    assert published(second, begun(second)) == NAME
    manifest = parse_manifest((tmp_path / NAME / "manifest.json").read_bytes(), name=NAME)
    assert manifest.job.uid == "another-uid"


def test_an_attempt_removes_the_markers_of_lower_ones(tmp_path: Path) -> None:
    for attempt in (1, 2, 3):
        small_files(tmp_path, attempt=attempt).begin_attempt()
    assert FolderStore(tmp_path).files() == ["attempt-000003"]


def test_an_attempt_begins_beside_a_version_without_its_manifest(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    small_files(tmp_path, attempt=2).begin_attempt()


def test_a_version_is_kept_for_who_waits_for_it_and_none_begins_to_read_one_that_goes(
    store: TroubledStore,
) -> None:
    publisher = publisher_to(store)
    waited_for, others = begun(publisher, step=1), []
    with publisher.being_read(waited_for):
        published(publisher, waited_for)
        for step in (2, 3, 4):
            others.append(begun(publisher, step=step))
            published(publisher, others[-1])
        wait_for_writers()
        assert NAME in store.folders()
    with (
        pytest.raises(WeightSyncError, match="version-000001-000002 has been removed"),
        publisher.being_read(others[0]),
    ):
        pass


def test_a_version_that_one_of_its_readers_is_done_with_is_kept_for_the_other(store: TroubledStore) -> None:
    publisher = publisher_to(store)
    read = begun(publisher, step=1)
    published(publisher, read)
    with publisher.being_read(read):
        with publisher.being_read(read):
            pass
        for step in (2, 3, 4):
            published(publisher, begun(publisher, step=step))
        wait_for_writers()
        assert NAME in store.folders()


def test_latest_names_the_newest_also_when_an_older_one_is_written_after_it(store: TroubledStore) -> None:
    publisher, newest = publisher_to(store), "version-000001-000002"
    for step in (2, 1):
        published(publisher, begun(publisher, step=step))
        assert store.read(LATEST) == f"{newest}\n".encode()
    assert store.folders() == [NAME, newest]
