"""What the backend Disk writes: folders that load as models, whole or absent, of one attempt at a time."""

import errno
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from disk_in_a_folder import JOB, small_files, wait_for_writers
from polling import wait_until
from receiver_harness import accident, packed, some_weights, stall
from safetensors.torch import load_file

from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.errors import SupersededError, UserError
from grpo_runtime.weight_sync.disk.backend import StoreReceiver
from grpo_runtime.weight_sync.disk.publisher import AttemptMarkers, Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, MissingError
from grpo_runtime.weight_sync.disk.version import (
    StoredStream,
    VersionManifest,
    parse_manifest,
    tensor_files,
    version_named,
)
from grpo_runtime.weight_sync.disk.version_reader import VersionReader, open_version
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import manifest_of
from grpo_runtime.weight_sync.tag import TAG_BYTES

SECONDS = 30.0


def publish(publisher: Publisher, step: int, *, attempt: int = 1, copy: HostCopy | None = None) -> str:
    """Write a version to its end; returns its name."""
    copy = copy or packed(step)
    publisher.publish(copy, PolicyVersion(attempt, step))
    return publisher.published(copy).result(SECONDS).name


def versions_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def manifest_in(folder: Path, name: str) -> VersionManifest:
    return parse_manifest((folder / name / "manifest.json").read_bytes(), name=name)


def test_a_version_is_files_of_safetensors_with_an_index_and_the_digest_of_each(tmp_path: Path) -> None:
    name = publish(small_files(tmp_path), 3)
    assert (name, versions_in(tmp_path)) == ("version-000001-000003", [name])
    assert (tmp_path / "LATEST").read_text() == f"{name}\n"
    index = json.loads((tmp_path / name / "model.safetensors.index.json").read_text())["weight_map"]
    files = {file: load_file(tmp_path / name / file) for file in set(index.values())}
    assert len(files) > 1
    for tensor_name, tensor in some_weights(3).items():
        found = files[index[tensor_name]][tensor_name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        bits = [each.contiguous().view(-1).view(torch.uint8) for each in (found, tensor)]
        assert torch.equal(*bits)

    manifest = manifest_in(tmp_path, name)
    assert (manifest.job, manifest.version) == (JOB, PolicyVersion(1, 3))
    assert [tensor.name for tensor in manifest.tensors] == list(some_weights(3))
    on_disk = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    del on_disk["manifest.json"]
    assert {file: (len(data), hashlib.sha256(data).hexdigest()) for file, data in on_disk.items()} == {
        file: (entry.num_bytes, entry.sha256) for file, entry in manifest.files.items()
    }


def test_every_tensor_begins_at_a_multiple_of_its_element_and_no_file_is_begun_beyond_its_size() -> None:
    dtypes = (torch.bfloat16, torch.float32, torch.int8, torch.float64)
    layout = [TensorSpec(f"t{index}", (7 + index,), dtypes[index % 4]) for index in range(40)]
    manifest = manifest_of(layout)
    files = tensor_files(manifest, file_bytes=200)
    dtype_of = {spec.name: spec.dtype for spec in layout}
    for file in files:
        for name, offset in file.offsets().items():
            assert offset % dtype_of[name].itemsize == 0
        assert len(file.tensors) == 1 or file.num_bytes - len(file.header) <= 200
    assert sorted(entry.name for file in files for entry in file.tensors) == sorted(dtype_of)
    assert tensor_files(manifest, file_bytes=10_000)[0].name.startswith("model-00001-of-")
    one_size = [spec for spec in layout if spec.dtype == torch.float32]
    assert [file.name for file in tensor_files(manifest_of(one_size))] == ["model.safetensors"]


def test_files_that_make_a_model_of_it_are_beside_every_version(tmp_path: Path) -> None:
    asked: list[int] = []

    def model_files() -> dict[str, bytes]:
        asked.append(1)
        return {"config.json": b"{}", "tokenizer.json": b"[]"}

    publisher = Publisher(FolderStore(tmp_path), job=JOB, attempt=1, keep=2, model_files=model_files)
    for step in (1, 2):
        name = publish(publisher, step)
        assert (tmp_path / name / "config.json").read_bytes() == b"{}"
        assert "tokenizer.json" in manifest_in(tmp_path, name).files
    assert asked == [1]


def test_the_newest_versions_stay_and_one_that_is_being_read_too(tmp_path: Path) -> None:
    publisher = small_files(tmp_path, keep=2)
    copy = packed(1)
    first = publish(publisher, 1, copy=copy)
    with publisher.being_read(copy):
        names = [first, *(publish(publisher, step) for step in (2, 3, 4))]
        wait_for_writers()
        assert versions_in(tmp_path) == [names[0], *names[2:]]
    names.append(publish(publisher, 5))
    wait_for_writers()
    assert versions_in(tmp_path) == names[-2:]


def test_nothing_is_seen_of_a_version_that_could_not_be_written_and_another_try_may_work(
    tmp_path: Path,
) -> None:
    class FullStore(FolderStore):
        is_full = True

        @contextmanager
        def writing(self, folder: str, name: str) -> Iterator[object]:  # type: ignore[override]
            with super().writing(folder, name) as sink:
                if self.is_full and name.startswith("model-00002-of-"):
                    with self._errors(name):
                        raise OSError(errno.ENOSPC, "No space left on device")
                yield sink

    store = FullStore(tmp_path)
    publisher = Publisher(store, job=JOB, attempt=1, keep=2, file_bytes=8 * 1024)
    copy = packed(1)
    publisher.publish(copy, PolicyVersion(1, 1))
    with pytest.raises(WeightSyncError, match=r"weights 1\.1 could not be written: .* is full.*disk\.keep"):
        publisher.published(copy).result(SECONDS)
    assert list(tmp_path.iterdir()) == []
    store.is_full = False
    assert publisher.published(copy).result(SECONDS).name == "version-000001-000001"
    assert versions_in(tmp_path) == ["version-000001-000001"]


def test_an_attempt_removes_what_was_never_committed_and_keeps_what_was(tmp_path: Path) -> None:
    (tmp_path / ".tmp-of-somebody-else").mkdir()
    first = small_files(tmp_path)
    first.begin_attempt()
    name, until = publish(first, 1), threading.Event()
    stalled = packed(2, alter=accident(stall(until)))
    try:
        first.publish(stalled, PolicyVersion(1, 2))
        wait_until((tmp_path / ".tmp-version-000001-000002").exists, "the second version to be begun")
        second = small_files(tmp_path, attempt=2)
        second.begin_attempt()
        assert versions_in(tmp_path) == [".tmp-of-somebody-else", name]
    finally:
        until.set()
    with pytest.raises(WeightSyncError, match="could not be written"):
        first.published(stalled).result(SECONDS)
    newer = publish(second, 1, attempt=2)
    assert (tmp_path / "LATEST").read_text() == f"{newer}\n"


def test_a_lower_attempt_neither_begins_nor_writes_once_a_higher_one_has_begun(tmp_path: Path) -> None:
    stale = small_files(tmp_path, attempt=1)
    stale.begin_attempt()
    newer = small_files(tmp_path, attempt=2)
    newer.begin_attempt()
    name = publish(newer, 4, attempt=2)
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        small_files(tmp_path, attempt=1).begin_attempt()
    for _ in range(2):
        # what the run finds at its next sync
        with pytest.raises(SupersededError, match="attempt 2 has begun"):
            publish(stale, 9)
    assert versions_in(tmp_path) == [name]
    assert (tmp_path / "LATEST").read_text() == f"{name}\n"


def test_a_marker_of_a_job_that_had_the_place_before_counts_for_nothing_and_that_of_one_after_ends_this_one(
    tmp_path: Path,
) -> None:
    store = FolderStore(tmp_path)
    first, second = (
        AttemptMarkers(store, job=JobRef(namespace="team", name="copy", uid=uid), attempt=1)
        for uid in ("first-uid", "second-uid")
    )
    first.place()
    second.refuse_when_superseded()
    second.place()
    second.refuse_when_superseded()
    with pytest.raises(SupersededError, match="another job has begun to write weights"):
        first.refuse_when_superseded()


def test_an_attempt_begins_beside_a_version_that_is_damaged(tmp_path: Path) -> None:
    name = publish(small_files(tmp_path), 1)
    (tmp_path / name / "manifest.json").write_text("{")
    second = small_files(tmp_path, attempt=2)
    second.begin_attempt()
    names = [publish(second, step, attempt=2) for step in (1, 2)]
    wait_for_writers()
    assert versions_in(tmp_path) == names


def test_the_folder_of_another_job_is_refused(tmp_path: Path) -> None:
    publish(small_files(tmp_path), 1)
    other = JobRef(namespace="team", name="other", uid="another-uid")
    with pytest.raises(UserError, match=r"weights of another job \(copy, uid 0b5cbf2c-uid\)"):
        Publisher(FolderStore(tmp_path), job=other, attempt=1, keep=2).begin_attempt()


def reader_of(folder: Path, name: str) -> VersionReader:
    store = FolderStore(folder)
    return VersionReader(store, name, open_version(store, name), tag=bytes(TAG_BYTES))


def read(reader: VersionReader) -> bytes:
    target = bytearray(reader.stream.stream_bytes)
    for _ in reader.fill(iter([memoryview(target)])):
        pass
    return bytes(target)


def test_a_version_is_read_as_the_stream_that_was_packed(tmp_path: Path) -> None:
    copy = packed(1)
    name = publish(small_files(tmp_path), 1, copy=copy)
    reader = reader_of(tmp_path, name)
    assert [entry.offset for entry in reader.stream.tensors] == [
        entry.offset for entry in copy.manifest.tensors
    ]
    assert read(reader)[:-TAG_BYTES] == bytes(copy.memory.stream.numpy())[:-TAG_BYTES]


def test_a_torn_a_missing_and_a_foreign_file_are_told(tmp_path: Path) -> None:
    name = publish(small_files(tmp_path), 1)
    torn = min((tmp_path / name).glob("model-*.safetensors"))
    data = torn.read_bytes()
    torn.write_bytes(data[:-1])
    with pytest.raises(WeightSyncError, match=f"has {len(data) - 1} bytes and not {len(data)}, as its"):
        read(reader_of(tmp_path, name))
    torn.unlink()
    with pytest.raises(WeightSyncError, match=f"has no {name}/{torn.name}"):
        read(reader_of(tmp_path, name))
    (tmp_path / name).rename(tmp_path / "version-000001-000002")
    with pytest.raises(WeightSyncError, match=f"is that of {name}"):
        reader_of(tmp_path, "version-000001-000002")
    with pytest.raises(WeightSyncError, match=f"has no {name}/manifest.json"):
        reader_of(tmp_path, name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"file": "../../etc/passwd"}, "is no manifest of weights"),
        ({"file": ".hidden"}, "is no manifest of weights"),
        ({"file": "other.safetensors"}, "does not list other.safetensors"),
        ({"offset": 8}, "does not follow the tensor before it|end at byte"),
        ({"dtype": "pickle"}, "cannot travel"),
        ({"shape": [-1]}, "is no manifest of weights"),
    ],
)
def test_a_manifest_that_points_elsewhere_is_refused(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    name = publish(small_files(tmp_path), 1)
    path = tmp_path / name / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tensors"][0] |= change
    path.write_text(json.dumps(manifest))
    with pytest.raises(WeightSyncError, match=sentence):
        reader_of(tmp_path, name)


@pytest.mark.parametrize(
    "text", ["version-1-1", "../version-000001-000001", "version-000001-000001/..", "LATEST"]
)
def test_only_names_of_versions_are_read(text: str, tmp_path: Path) -> None:
    assert version_named(text) is None
    receiver = StoreReceiver(lambda: FolderStore(tmp_path))
    receiver.init({"sender": "0" * 16})
    stream = StoredStream(sender="0" * 16, name=text, tag=bytes(TAG_BYTES))
    with pytest.raises(WeightSyncError, match="names no version of a store"):
        receiver.memory(100, connection=str(stream), stall_seconds=1.0)


def test_a_file_that_is_missing_in_a_store_is_told_from_a_store_that_is_gone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "none")
    assert (store.folders(), store.files()) == ([], [])
    with pytest.raises(MissingError):
        store.read("LATEST")
