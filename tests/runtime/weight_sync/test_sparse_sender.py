"""The deadline of a sparse sync, whose groups are fakes, and what cannot be a sparse sync."""

import asyncio
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import torch
from pod_builder import run_config, trainer_environment
from test_group_sender import (
    ARRIVES,
    BREAKS,
    BUFFER_BYTES,
    GIVE_UP_SECONDS,
    NEVER_ENDS,
    Engine,
    Way,
    host_for_nobody,
    weights_that_do_not_come,
)
from weight_sources import FixedWeights

from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.group_sender import GroupSender
from grpo_runtime.weight_sync.interface import (
    Failures,
    Info,
    NeedsAllWeightsError,
    Peer,
    ReceiverSettings,
    SenderSettings,
)
from grpo_runtime.weight_sync.registry import GLOO, IN_PROCESS, SPARSE_GLOO
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.sparse.sender import (
    SparsePreparation,
    SparseSender,
    SparseWeights,
    sparse_backend,
)
from grpo_runtime.weight_sync.stream.host_copy import HostCopy

TIMEOUT_SECONDS = 2.0
SETTINGS = SenderSettings(Deadlines(TIMEOUT_SECONDS))


class EngineThatKeptNothing(Engine):
    """It can use all weights only."""

    async def update(self, info: Info) -> None:
        if "changes" in info:
            raise NeedsAllWeightsError("it has kept none")
        await super().update(info)


class NotingSender(GroupSender):
    """Notes when the updates end that it is asked for."""

    ends_at: float

    async def update(
        self, weights: HostCopy, *, engines: Collection[str], ends_at: float | None = None
    ) -> Failures:
        assert ends_at is not None
        self.ends_at = ends_at
        return await super().update(weights, engines=engines, ends_at=ends_at)


def group_sender_to(engines: Mapping[str, Engine], way: Way) -> NotingSender:
    peers = {name: Peer(engine, host="127.0.0.1") for name, engine in engines.items()}
    return NotingSender(peers, SETTINGS, join=way.join, host=host_for_nobody)


def sender_to(engines: Mapping[str, Engine], way: Way) -> SparseSender:
    return SparseSender(group_sender_to(engines, way), SETTINGS)


def weights_of_which_one_changed(*, holders: str) -> SparseWeights:
    """Those `holders` finished the update before."""

    def copy(source: WeightSource) -> HostCopy:
        return HostCopy(source, buffer_bytes=BUFFER_BYTES)

    prepare = SparsePreparation(copy, full_every=100)
    before = torch.ones(BUFFER_BYTES // 4)
    prepare(FixedWeights([("weight", before)])).is_held_by(holders)
    after = before.clone()
    after[7] = 2.0
    return prepare(FixedWeights([("weight", after)]))


@pytest.mark.at_once
async def test_engines_that_must_be_given_all_weights_get_them_up_to_the_deadline() -> None:
    """One that got them in time has them, whatever becomes of the others."""
    way = Way(together=BREAKS, alone=iter([ARRIVES, NEVER_ENDS]))
    sender = sender_to({name: EngineThatKeptNothing(name, way) for name in "ab"}, way)
    assert await sender.init("ab") == {}
    async with asyncio.timeout(GIVE_UP_SECONDS / 2):
        failures = await sender.update(weights_of_which_one_changed(holders="ab"), engines="ab")
    assert {name: str(error) for name, error in failures.items()} == {way.turns[1]: "not done within 2 s"}
    # nobody is left behind in the group
    assert way.group.is_over.wait(GIVE_UP_SECONDS / 2)
    await sender.shutdown()


@pytest.mark.at_once
async def test_what_the_trainer_waits_for_is_part_of_the_deadline() -> None:
    way = Way(together=ARRIVES, alone=iter([NEVER_ENDS]))
    group_sender = group_sender_to({"a": Engine("a", way)}, way)
    sender = SparseSender(group_sender, SETTINGS)
    assert await sender.init("a") == {}
    with weights_that_do_not_come() as copy:
        updating = asyncio.ensure_future(sender.update(SparseWeights(copy), engines="a"))
        await asyncio.sleep(0)  # it has begun to wait for them
        come_at = time.monotonic()
    failures = await updating
    assert group_sender.ends_at <= come_at + TIMEOUT_SECONDS
    assert {name: str(error) for name, error in failures.items()} == {"a": "not done within 2 s"}
    await sender.shutdown()


def test_a_backend_that_stages_nothing_cannot_be_sent_what_changed() -> None:
    with pytest.raises(TypeError, match="in_process weight sync keeps no weights that could be changed"):
        sparse_backend(IN_PROCESS).make_receiver(ReceiverSettings(layout={}))  # type: ignore[arg-type]


def test_what_changed_is_prepared_in_a_run_only_which_says_how_often_all_weights_are_sent(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="it must know how often all weights are sent"):
        sparse_backend(GLOO).prepare(FixedWeights([("weight", torch.ones(1))]))
    of_another_run = read_trainer_settings(trainer_environment(tmp_path, run_config()))
    assert SPARSE_GLOO.for_run is not None
    with pytest.raises(ValueError, match=r"sparse_gloo weight sync needs weightSync\.sparse"):
        SPARSE_GLOO.for_run(of_another_run, dict)
