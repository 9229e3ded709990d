"""A real engine whose model is cut into two parts, each in a process of its own, in a fleet."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_of_several import assert_it_samples_as_one_worker_does
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from polling import wait_until
from receiver_harness import AlteredCopy, flip_a_bit
from transformers import PreTrainedModel

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.fleet.engine_client import Address, EngineClient
from grpo_runtime.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.fleet.generate_api import answered_probe_error, probe_body
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.host_copy import HostCopy
from grpo_runtime.weight_sync.registry import GLOO

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine_of_two(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The last test here kills a part of it."""
    folder = tmp_path_factory.mktemp("two")
    with start(folder, name="engine-of-two", tensor_parallel_size=2) as started:
        yield started


async def test_each_sync_reaches_both_workers_and_the_engine_samples_what_one_of_one_worker_does(
    engine_of_two: Any, engine: Any, attempt: int
) -> None:
    await assert_it_samples_as_one_worker_does(engine_of_two, one=engine, attempt=attempt, num_workers=2)


async def test_a_failed_transfer_leaves_both_workers_their_old_weights_and_the_next_one_works(
    engine_of_two: Any, attempts: Iterator[int]
) -> None:
    attempt = next(attempts)
    async with aiohttp.ClientSession() as session:
        tokens = Tokens(data=engine_of_two.data_token, admin=engine_of_two.admin_token)
        address = Address("127.0.0.1", engine_of_two.port)
        client = EngineClient(session, address, tokens=tokens, attempt=attempt)
        sync = OneEngineSync(client, backend=GLOO, timeout_seconds=20.0, workers_per_engine=2)
        first, second = (changed_policy(engine_of_two.model_dir, seed=seed) for seed in (30, 31))

        def job(step: int, policy: PreTrainedModel, weights: HostCopy) -> SyncJob:
            return SyncJob(version=PolicyVersion(attempt, step), weights=weights, probe=probe_of(policy))

        async def probe_error(policy: PreTrainedModel) -> float:
            probe = probe_of(policy)
            answer = await client.generate(probe_body(probe), is_probe=True, timeout_seconds=10)
            return answered_probe_error(answer, probe=probe, engine="engine-of-two")

        await sync.run(job(1, first, HostCopy(weights_of(first))))
        broken = AlteredCopy(weights_of(second), alter=flip_a_bit, buffer_bytes=4096)
        with pytest.raises(SyncFailedError, match="not the bytes announced"):
            await sync.run(job(2, second, broken))
        await client.resume(timeout_seconds=10)
        assert await probe_error(first) < 1e-4

        for step in (3, 4):
            report = await sync.run(job(step, second, HostCopy(weights_of(second))))
            assert report.probe_error < 1e-4
        await sync.close()


def test_an_engine_that_has_lost_a_worker_says_so_and_ends(engine_of_two: Any) -> None:
    """The last test of this file."""
    os.kill(worker_of(engine_of_two), signal.SIGKILL)
    wait_until(lambda: not engine_of_two.is_live(), "the engine says that it is dead", seconds=15)
    assert engine_of_two.process.wait(20) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(engine_of_two.termination_log.read_text())
    assert message.message == "the vLLM engine died; see this container's log"
    wait_until(lambda: processes_of(engine_of_two) == {}, "no process outlives it")


def worker_of(engine: Any) -> int:
    """The process of its last worker."""
    return max(pid for pid, name in processes_of(engine).items() if "Worker_TP1" in name)


def processes_of(engine: Any) -> dict[int, str]:
    """The command line of each living process of the pod's session."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if int(fields[3]) == engine.process.pid and fields[0] != "Z":
            found[int(stat.parent.name)] = command
    return found
