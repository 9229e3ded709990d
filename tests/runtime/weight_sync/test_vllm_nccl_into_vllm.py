"""A real engine of vLLM with its own nccl engine for weight transfer, whose communicator is a stand-in."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from receiver_harness import AlteredCopy, accident, stall
from stand_in_nccl import StandInDevice
from stand_in_vllm_nccl import StandInNcclToVllm

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import WeightSyncBackend
from grpo_runtime.engines.fleet.connections import open_session
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import vllm_nccl_backend

pytestmark = [pytest.mark.engine, pytest.mark.matrix]
PROGRAM = (str(Path(__file__).with_name("pod_with_stand_in_nccl.py")),)
BACKEND = vllm_nccl_backend(
    "vllm_nccl",
    connect=StandInNcclToVllm,
    rank_device=StandInDevice,
    # below some tensors of the model, and above others
    chunk_bytes=32 * 1024,
)


@pytest.fixture(params=[1, 2])
def num_workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def engine(start: Any, tmp_path: Path, num_workers: int) -> Iterator[Any]:
    """Of one test alone, which ends it."""
    with start(
        tmp_path,
        name="engine-of-vllm",
        program=PROGRAM,
        tensor_parallel_size=num_workers,
        weight_sync_backend=WeightSyncBackend.VLLM_NCCL,
    ) as started:
        yield started


async def test_syncs_that_are_whole_are_served_and_one_that_breaks_off_ends_the_engine(
    engine: Any, num_workers: int, attempt: int
) -> None:
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    async with open_session() as session:
        client = EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)
        sync = OneEngineSync(client, backend=BACKEND, timeout_seconds=20, workers_per_engine=num_workers)
        for seed in (1, 2):
            policy = changed_policy(engine.model_dir, seed=seed)
            weights = BACKEND.prepare(weights_of(policy))
            version = PolicyVersion(attempt, seed)
            report = await sync.run(SyncJob(version=version, weights=weights, probe=probe_of(policy)))
            assert report.probe_error < 1e-4
        assert "NCCLWeightTransferEngine" in engine.log()

        # the trainer hangs in the middle: the engine has the first tensors, and nobody but it ends this
        policy, until = changed_policy(engine.model_dir, seed=3), threading.Event()
        broken = AlteredCopy(weights_of(policy), alter=accident(stall(until)), buffer_bytes=32 * 1024)
        try:
            with pytest.raises(SyncFailedError, match="transfer"):
                await sync.run(
                    SyncJob(version=PolicyVersion(attempt, 3), weights=broken, probe=probe_of(policy))
                )
        finally:
            until.set()
        await sync.close()

    assert engine.process.wait(60) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(engine.termination_log.read_text())
    assert "engine died" in message.message
    assert "waits for the trainer beyond its deadline" in engine.log()
