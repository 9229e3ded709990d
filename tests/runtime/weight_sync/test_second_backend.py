"""A backend that the product does not know, in both modes. The contract test has it too."""

import asyncio

import pytest
import torch
from fake_engine_server import FakeEngine
from fake_local_engine import SHAPES, FakeLocalEngine, some_weights
from fake_vllm import RefusedError
from file_backend import FILE, FileSender
from fleet_builder import raising, requests, sync, unsynced_fleet_of, until, versions

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.engines.routes import UPDATE_PATH
from grpo_runtime.weight_sync.interface import Receiver, ReceiverSettings
from grpo_runtime.weight_sync.tag import TAG_BYTES

SETTINGS = ReceiverSettings(layout={"w": (4,)})


def make_receiver() -> Receiver:
    return FILE.make_receiver(SETTINGS)


def weights_of_step(step: int) -> torch.Tensor:
    return torch.full((4,), float(step))


@pytest.mark.usefixtures("pod_environment")
async def test_one_transfer_serves_all_engines_of_a_fleet() -> None:
    first, second = (FakeEngine(name, make_receiver=make_receiver) for name in "ab")
    async with unsynced_fleet_of(first, second, backend=FILE) as fleet:
        # both are there, so that one sender takes both
        await until(lambda: fleet.counts().known == 2)
        for step in range(2):
            FileSender.num_files_written = 0
            report = await sync(fleet, step=step)
            assert report.synced == ("a", "b")
            # the whole fleet's: the file is written once
            assert report.num_bytes_sent == report.num_bytes + TAG_BYTES
            assert report.paused_seconds is not None
            assert report.paused_seconds >= report.phase_seconds["transfer"]
            assert FileSender.num_files_written == 1
            for engine in (first, second):
                assert torch.equal(engine.vllm.tensors["w"], weights_of_step(step))
        assert versions(await fleet.generate(requests(8))) == {"1.1"}


@pytest.mark.usefixtures("pod_environment")
async def test_an_engine_that_fails_does_not_fail_those_that_share_its_sender_and_comes_back_alone() -> None:
    good, bad = (FakeEngine(name, make_receiver=make_receiver) for name in ("good", "bad"))
    async with unsynced_fleet_of(good, bad, backend=FILE) as fleet:
        await until(lambda: fleet.counts().known == 2)
        await sync(fleet, step=0)
        bad.vllm.during[UPDATE_PATH] = raising(RefusedError("out of disk"))
        report = await sync(fleet, step=1)
        assert (report.synced, set(report.failed)) == (("good",), {"bad"})
        assert "out of disk" in report.failed["bad"]
        assert torch.equal(good.vllm.tensors["w"], weights_of_step(1))
        bad.vllm.during.clear()
        await until(lambda: fleet.counts().current == 2)
        assert torch.equal(bad.vllm.tensors["w"], weights_of_step(1))
        # and together again
        assert (await sync(fleet, step=2)).synced == ("bad", "good")


async def test_an_engine_in_a_training_process_takes_it_too() -> None:
    fake = FakeLocalEngine(receiver=FILE.make_receiver(ReceiverSettings(layout=SHAPES)))
    engine = RankEngine(fake, backend=FILE, sleep_level=0, timeout_seconds=60.0)
    for step in range(2):
        report = await asyncio.to_thread(
            engine.sync, some_weights(), version=PolicyVersion(1, step), probe=None
        )
        assert fake.version == f"1.{step}"
        assert report.num_bytes == 16
