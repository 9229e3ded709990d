"""A real engine that has no memory to stage weights in: they go into its model while they arrive."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from receiver_harness import AlteredCopy, flip_a_bit

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncFailedError, SyncJob
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

pytestmark = pytest.mark.engine
PROGRAM = (str(Path(__file__).with_name("pod_without_memory.py")),)


@pytest.fixture
def engine(start: Any, tmp_path: Path) -> Iterator[Any]:
    """Of this test alone, which ends it."""
    with start(tmp_path, name="engine-without-memory", program=PROGRAM) as started:
        yield started


async def test_syncs_that_are_whole_are_served_and_one_that_is_not_ends_the_engine(
    engine: Any, attempt: int
) -> None:
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    async with open_session() as session:
        client = EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)
        sync = OneEngineSync(client, backend=GLOO, timeout_seconds=20)
        for seed in (1, 2):
            policy = changed_policy(engine.model_dir, seed=seed)
            # in buffers that are smaller than some tensors
            weights = HostCopy(weights_of(policy), buffer_bytes=32 * 1024)
            version = PolicyVersion(attempt, seed)
            report = await sync.run(SyncJob(version=version, weights=weights, probe=probe_of(policy)))
            assert report.probe_error < 1e-4

        # what arrived before the altered bytes is in the model, so that the engine ends
        policy = changed_policy(engine.model_dir, seed=3)
        altered = AlteredCopy(weights_of(policy), alter=flip_a_bit, buffer_bytes=4096)
        with pytest.raises(SyncFailedError, match="transfer"):
            await sync.run(
                SyncJob(version=PolicyVersion(attempt, 3), weights=altered, probe=probe_of(policy))
            )
        await sync.close()

    assert engine.process.wait(30) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(engine.termination_log.read_text())
    assert "engine died" in message.message
    assert "not the bytes announced" in engine.log()
