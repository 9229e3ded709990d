"""Real engines that are sent what changed, and whose logprobs must then be the trainer's."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from one_engine_sync import OneEngineSync
from policy_builder import changed_policy, probe_of, weights_of
from transformers import PreTrainedModel

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.engine_sync import SyncJob
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.sparse.sender import SparsePreparation, SparseWeights, sparse_backend
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import TAG_BYTES

pytestmark = pytest.mark.engine
FULL_EVERY = 3


@pytest.fixture
def engine(start: Any, tmp_path: Path) -> Iterator[Any]:
    with start(tmp_path, name="engine-sparse", sparse_full_every=FULL_EVERY) as started:
        yield started


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


def policy_at(model_dir: Path, step: int) -> PreTrainedModel:
    """A policy of which every twentieth weight changes at each step."""
    policy = changed_policy(model_dir, seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            for number in range(1, step + 1):
                parameter.view(-1)[number::20] += 0.1
    return policy


async def test_an_engine_samples_from_the_policy_that_it_was_sent_as_changes(
    engine: Any, attempt: int, session: aiohttp.ClientSession
) -> None:
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    client = EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)
    sync, prepare = (
        OneEngineSync(client, backend=sparse_backend(GLOO, full_every=FULL_EVERY), timeout_seconds=20.0),
        SparsePreparation(HostCopy, full_every=FULL_EVERY),
    )
    sent: list[SparseWeights] = []
    for step in range(5):
        policy = policy_at(engine.model_dir, step)
        sent.append(prepare(weights_of(policy)))
        # the probe fails unless the engine has exactly this policy
        job = SyncJob(version=PolicyVersion(attempt, step), weights=sent[-1], probe=probe_of(policy))
        await sync.run(job)
    await sync.close()

    are_whole = [weights.num_bytes_sent == weights.num_bytes + TAG_BYTES for weights in sent]
    assert are_whole == [True, False, False, True, False]
    assert all(
        weights.num_bytes_sent < 0.1 * weights.num_bytes
        for weights, is_whole in zip(sent, are_whole, strict=True)
        if not is_whole
    )
