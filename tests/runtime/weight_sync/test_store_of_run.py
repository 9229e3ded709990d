"""The backend Disk as the pods of a run have it: where its store is, and a fleet that reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_engine_server import FakeEngine
from fleet_builder import sync, unsynced_fleet_of, until
from guard_environment import guard_environment
from pod_builder import JOB_UID, run_config, trainer_environment

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.routes import UPDATE_PATH
from grpo_runtime.errors import UserError
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.weight_sync.disk.backend import StoreUnreachableError, store_of
from grpo_runtime.weight_sync.disk.store import FolderStore
from grpo_runtime.weight_sync.interface import Backend, Receiver, ReceiverSettings
from grpo_runtime.weight_sync.registry import DISK
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import TAG_BYTES

CLAIM = {"disk": {"to": "pvc://weights/copy", "keep": 2}}


def trainer_of(folder: Path, run: RunConfig, *, attempt: int = 1) -> TrainerSettings:
    return read_trainer_settings(trainer_environment(folder, run, attempt=attempt))


@pytest.fixture
def run() -> RunConfig:
    return run_config(weightSync=CLAIM)


@pytest.fixture
def backend(tmp_path: Path, run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend[HostCopy]]:
    """Of the trainer, with the environment of a rollout pod for its engines."""
    assert DISK.for_run is not None
    of_run = DISK.for_run(trainer_of(tmp_path, run), lambda: {"config.json": b"{}"})
    for name, value in guard_environment(tmp_path, run_json=run.model_dump_json(by_alias=True)).items():
        monkeypatch.setenv(name, value)
    yield of_run


def make_receiver() -> Receiver:
    return DISK.make_receiver(ReceiverSettings(layout={"w": (4,)}))


def versions_of(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "volumes/weights/weights/copy").glob("version-*"))


def weights_of_step(step: int) -> torch.Tensor:
    return torch.full((4,), float(step))


async def test_a_fleet_reads_what_its_trainer_writes_once_and_so_does_an_engine_that_joins(
    backend: Backend[HostCopy], tmp_path: Path
) -> None:
    first, second, joiner = (FakeEngine(name, make_receiver=make_receiver) for name in "abc")
    async with unsynced_fleet_of(first, second, backend=backend) as fleet:
        await until(lambda: fleet.counts().known == 2)
        for step in (1, 2, 3):
            report = await sync(fleet, step=step)
            assert report.synced == ("a", "b")
            assert report.num_bytes_sent == report.num_bytes + TAG_BYTES
            for engine in (first, second):
                assert torch.equal(engine.vllm.tensors["w"], weights_of_step(step))
    assert versions_of(tmp_path)[-2:] == ["version-000001-000002", "version-000001-000003"]
    config = tmp_path / "volumes/weights/weights/copy/version-000001-000003/config.json"
    assert config.read_bytes() == b"{}"
    async with unsynced_fleet_of(joiner, backend=backend) as fleet:
        await until(lambda: fleet.counts().known == 1)
        assert (await sync(fleet, step=4)).synced == ("c",)
        assert torch.equal(joiner.vllm.tensors["w"], weights_of_step(4))


async def test_a_version_that_was_torn_fails_a_sync_with_a_sentence_and_is_written_again(
    backend: Backend[HostCopy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine("a", make_receiver=make_receiver)
    async with unsynced_fleet_of(engine, backend=backend) as fleet:
        await until(lambda: fleet.counts().known == 1)
        await sync(fleet, step=1)
        served: list[list[float]] = []

        async def tear_once() -> None:
            served.append(engine.vllm.tensors["w"].tolist())
            if len(served) == 1:
                file = tmp_path / "volumes/weights/weights/copy/version-000001-000002/model.safetensors"
                file.write_bytes(file.read_bytes()[:-3])

        engine.vllm.during[UPDATE_PATH] = tear_once
        report = await sync(fleet, step=2)
        assert report.synced == ("a",)
        # the first try has failed, and left the old weights
        assert served == [[1.0] * 4] * 2
        assert "has 109 bytes and not 112, as its manifest says" in caplog.text
        assert torch.equal(engine.vllm.tensors["w"], weights_of_step(2))


def test_without_a_path_the_folder_is_named_after_the_job(tmp_path: Path) -> None:
    run = run_config(weightSync={"disk": {"to": "pvc://weights"}})
    store = store_of(run, volumes_dir=tmp_path)
    assert isinstance(store, FolderStore)
    assert store.root == tmp_path / "weights/weights" / f"copy-{JOB_UID[:8]}"
    bucket = run_config(weightSync={"disk": {"to": "s3://models", "endpoint": "http://127.0.0.1:1"}})
    what = store_of(bucket, volumes_dir=tmp_path).what
    assert what == f"weightSync.disk.to (s3://models/copy-{JOB_UID[:8]})"


def test_a_secret_without_its_keys_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "secrets/store").mkdir(parents=True)
    run = run_config(weightSync={"disk": {"to": "s3://models", "secret": "store"}})
    with pytest.raises(UserError, match="the Secret store has no key accessKeyId"):
        store_of(run, volumes_dir=tmp_path)


def test_a_claim_that_cannot_be_written_ends_the_attempt_as_one_that_may_be_tried_again(
    tmp_path: Path, run: RunConfig
) -> None:
    assert DISK.for_run is not None
    settings = trainer_of(tmp_path, run)
    (tmp_path / "volumes/weights").mkdir(parents=True)
    (tmp_path / "volumes/weights/weights").write_text("a file in the place of the claim")
    with pytest.raises(StoreUnreachableError, match=r"weightSync\.disk\.to \(pvc://weights/copy\): "):
        DISK.for_run(settings, dict)
