"""The versions that the options of `grpo-runtime follow` name, of a claim and of a bucket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disk_in_a_folder import JOB
from receiver_harness import packed
from s3_server import BUCKET, S3Server, s3_secret, served_bucket

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.follow.main import FollowOptions, open_versions
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import S3Location, UploadCredentials
from grpo_runtime.weight_sync.disk.backend import store_in_bucket
from grpo_runtime.weight_sync.disk.publisher import Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreRefusedError, VersionStore

URL = f"s3://{BUCKET}/run-1/weights"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with served_bucket(tmp_path / "s3") as server:
        yield server


def options(folder: Path, **given: Any) -> FollowOptions:
    return FollowOptions(
        **{
            "source": f"file://{folder / 'store'}",
            "token": folder / "token",
            "cache": folder / "cache",
            "host": "127.0.0.1",
            "port": 0,
            "interval_seconds": 1.0,
            "timeout_seconds": 1.0,
            **given,
        }
    )


def publish(store: VersionStore, step: int) -> str:
    publisher = Publisher(store, job=JOB, attempt=1, keep=2, model_files=lambda: {"config.json": b"{}"})
    copy = packed(step)
    publisher.publish(copy, PolicyVersion(1, step))
    return publisher.published(copy).result(30).name


def in_bucket(s3: S3Server, credentials: UploadCredentials) -> VersionStore:
    location = S3Location(URL, endpoint=s3.endpoint)
    return store_in_bucket(location, credentials=credentials, field="weightSync.disk.to")


def check_copied_from(store: VersionStore, given: FollowOptions) -> None:
    """What is copied stays whole when the job has removed it."""
    name = publish(store, 1)
    versions = open_versions(given)
    assert versions.newest() == name
    manifest = versions.fetch(name)
    store.discard(name)
    copied = {path.name: path.stat().st_size for path in versions.folder_of(name).iterdir()}
    assert copied.pop("manifest.json") > 0
    assert copied == {file: entry.num_bytes for file, entry in manifest.files.items()}
    assert versions.update_info(name, manifest, sender="0" * 16)["connection"]


def test_a_version_of_a_claim_is_copied_before_the_job_removes_it(tmp_path: Path) -> None:
    check_copied_from(FolderStore(tmp_path / "store"), options(tmp_path))


def test_a_version_of_a_bucket_is_copied_with_the_credentials_of_a_folder(
    s3: S3Server, tmp_path: Path
) -> None:
    secret = s3_secret(tmp_path / "secret")
    given = options(tmp_path, source=URL, endpoint=s3.endpoint, credentials=tmp_path / "secret")
    check_copied_from(in_bucket(s3, secret), given)


def test_a_follower_goes_on_once_its_credentials_are_renewed(s3: S3Server, tmp_path: Path) -> None:
    name = publish(in_bucket(s3, s3_secret(tmp_path / "good")), 1)
    folder = tmp_path / "secret"
    s3_secret(folder, secret_key="of-yesterday")
    versions = open_versions(options(tmp_path, source=URL, endpoint=s3.endpoint, credentials=folder))
    with pytest.raises(StoreRefusedError, match="refuses access") as refusal:
        versions.newest()
    assert str(refusal.value).endswith(
        f"let the credentials of --credentials (it is {folder}) list and read there"
    )
    s3_secret(folder)
    assert versions.newest() == name


def test_only_versions_are_removed_from_the_cache(tmp_path: Path) -> None:
    store, given = FolderStore(tmp_path / "store"), options(tmp_path)
    (given.cache / "of-somebody-else").mkdir(parents=True)
    versions = open_versions(given)
    names = [publish(store, step) for step in (1, 2)]
    for name in names:
        versions.fetch(name)
    assert versions.local.folders() == ["of-somebody-else", names[-1]]


def test_the_configuration_of_the_version_that_a_server_was_started_on_stays(tmp_path: Path) -> None:
    store, versions = FolderStore(tmp_path / "store"), open_versions(options(tmp_path))
    names = [publish(store, step) for step in (1, 2, 3)][-2:]
    versions.fetch(names[0])
    versions.start_on(names[0])
    for _ in range(2):
        versions.fetch(names[1])
    left = sorted(path.name for path in versions.folder_of(names[0]).iterdir())
    assert "config.json" in left
    assert not [name for name in left if name.endswith(".safetensors")]
    assert versions.local.folders() == names


def test_the_cache_is_another_folder_than_the_source_and_may_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is the folder of --source"):
        open_versions(options(tmp_path, cache=tmp_path / "store"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--cache: .*name a folder that this process may write to"):
        open_versions(options(tmp_path, cache=tmp_path / "file" / "cache"))
