"""Real engines that get weights by a transfer engine of vLLM: by one that is written in the tests and found
by its name, and by vLLM's nccl engine, whose communicators are stand-ins.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import socket_engine
from one_engine_sync import OneEngineSync
from pod_builder import run_config, trainer_environment
from policy_builder import changed_policy, probe_of, weights_of
from receiver_harness import AlteredCopy, accident, stall
from stand_in_vllm_nccl import new_stand_in_id, stand_in_for_cuda

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import WeightSyncBackend
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.settings import Tokens, read_trainer_settings
from grpo_runtime.weight_sync.interface import Backend
from grpo_runtime.weight_sync.registry import VLLM_NATIVE

pytestmark = pytest.mark.engine
PROGRAMS = {socket_engine.NAME: "pod_with_socket_engine.py", "nccl": "pod_with_stand_in_nccl.py"}


@pytest.fixture(
    params=[
        (socket_engine.NAME, 1),
        pytest.param((socket_engine.NAME, 2), marks=pytest.mark.matrix),
        pytest.param(("nccl", 1), marks=pytest.mark.matrix),
        pytest.param(("nccl", 2), marks=pytest.mark.matrix),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def chosen(request: pytest.FixtureRequest) -> tuple[str, int]:
    """The name of the transfer engine, and how many workers the engine has."""
    name, num_workers = request.param
    return str(name), int(num_workers)


@pytest.fixture
def engine(start: Any, tmp_path: Path, chosen: tuple[str, int]) -> Iterator[Any]:
    """Of one test alone, which ends it."""
    name, num_workers = chosen
    with start(
        tmp_path,
        name="engine-of-vllm",
        program=(str(Path(__file__).with_name(PROGRAMS[name])),),
        is_forked=num_workers == 1,
        tensor_parallel_size=num_workers,
        weight_sync_backend=WeightSyncBackend.VLLM_NATIVE,
        vllm_engine=name,
    ) as started:
        yield started


def backend_of_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Backend[Any]:
    """What the trainer of a run with this transfer engine uses: its half is found by the name."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from grpo_runtime.weight_sync.vllm_native import trainer_half

    if name == "nccl":
        stand_in_for_cuda()
        monkeypatch.setattr(trainer_half, "new_nccl_id", new_stand_in_id)
    elif name not in WeightTransferTrainerFactory._registry:
        socket_engine.register()
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}} if name == "nccl" else {}
    run = run_config(
        rollout={"replicas": 1, **gpu},
        trainer=gpu,
        weightSync={"backend": "VllmNative", "vllmEngine": name},
    )
    settings = read_trainer_settings({**os.environ, **trainer_environment(folder, run)})
    assert VLLM_NATIVE.for_run is not None
    return VLLM_NATIVE.for_run(settings, dict)


async def test_syncs_that_are_whole_are_served_and_one_that_breaks_off_ends_the_engine(
    engine: Any, chosen: tuple[str, int], attempt: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, num_workers = chosen
    backend = backend_of_run(name, tmp_path / "trainer", monkeypatch)
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    async with open_session() as session:
        client = EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)
        sync = OneEngineSync(client, backend=backend, timeout_seconds=20, workers_per_engine=num_workers)
        for seed in (1, 2):
            policy = changed_policy(engine.model_dir, seed=seed)
            weights = backend.prepare(weights_of(policy))
            version = PolicyVersion(attempt, seed)
            report = await sync.run(SyncJob(version=version, weights=weights, probe=probe_of(policy)))
            assert report.probe_error < 1e-4
        assert {"nccl": "NCCLWeightTransferEngine", socket_engine.NAME: "SocketEngine"}[name] in engine.log()

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
