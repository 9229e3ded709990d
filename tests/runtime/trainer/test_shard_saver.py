"""What a rank other than 0 has to do with a save. Here it is the only rank, and nobody hears it."""

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pod_builder import run_config
from still_strategy import StillStrategy

from grpo_runtime.errors import PeerLostError, VolumeFullError
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.process.background import in_thread
from grpo_runtime.trainer.checkpoint.contents import RunState, complete_checkpoint, read_training_state
from grpo_runtime.trainer.checkpoint.saver import ShardSaver
from grpo_runtime.trainer.checkpoint.shard import HostCopier, write_shard
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Command, Ranks, StopRequest
from grpo_runtime.trainer.following import FollowingRank
from grpo_runtime.trainer.reference import Reference

DEADLINE_SECONDS = 60.0


class FullStore(CheckpointStore):
    """A volume without space."""

    def unfinished(self, step: int) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_rank_that_cannot_write_its_shard_says_so_in_its_main_thread(ranks: Ranks, tmp_path: Path) -> None:
    strategy = StillStrategy(tmp_path / "tiny")
    saver = ShardSaver(
        FullStore(tmp_path, job_uid="uid", attempt=1, keep=1),
        model=strategy.model,
        strategy=strategy,  # type: ignore[arg-type]
        ranks=ranks,
        output_dir=tmp_path,
        is_shared=True,
    )
    saver.check()
    saver.save(2)
    assert saver._in_flight is not None
    wait([saver._in_flight], timeout=60)
    with pytest.raises(VolumeFullError, match=f"the volume of {tmp_path} is full"):
        saver.check()


class GatedStore(CheckpointStore):
    """A volume that answers once the gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, job_uid="uid", attempt=1, keep=1)
        self.gate = threading.Event()

    def unfinished(self, step: int) -> Path:
        assert self.gate.wait(DEADLINE_SECONDS)
        return super().unfinished(step)


class LosingRanks(Ranks):
    """Rank 0 announces a save, and then a rank is lost."""

    def __init__(self) -> None:
        super().__init__(rank=0, world_size=1, stop=StopRequest())
        self.is_lost = threading.Event()
        self._commands = [Command.SAVE]

    def next_command(self, *, on_tick: Callable[[], None]) -> Command:
        if self._commands:
            return self._commands.pop()
        self.is_lost.set()
        raise PeerLostError("another rank is gone")


def test_a_rank_that_fails_still_writes_its_shard_of_a_checkpoint_in_flight(
    ranks: Ranks, tmp_path: Path
) -> None:
    strategy, target, losing = StillStrategy(tmp_path / "tiny"), GatedStore(tmp_path / "all"), LosingRanks()
    parts: dict[str, Any] = {"strategy": strategy, "ranks": losing}
    saver = ShardSaver(target, model=strategy.model, output_dir=tmp_path, is_shared=True, **parts)
    follower = FollowingRank(run_config(), learner=Mock(), saver=saver, tokenizer=strategy.tokenizer, **parts)
    files: list[str] = []

    def follow() -> None:
        try:
            follower.follow(step=2, on_tick=Mock())
        finally:
            # the process would end here
            files.extend(path.name for path in tmp_path.glob("all/.tmp-step-000002-1/*.safetensors"))

    ended = in_thread(follow, name="follow")
    assert losing.is_lost.wait(DEADLINE_SECONDS)
    # without the wait it has ended by now
    wait([ended], timeout=1)
    target.gate.set()
    with pytest.raises(PeerLostError, match="another rank is gone"):
        ended.result(DEADLINE_SECONDS)
    assert files == ["optimizer.safetensors"]


def test_ranks_that_write_copy_each_tensor_once_and_all_others_nothing(tmp_path: Path) -> None:
    strategy = StillStrategy(tmp_path)
    copies = [
        HostCopier(strategy.model, strategy, rank=rank, num_writers=2).copy()  # type: ignore[arg-type]
        for rank in (0, 1, 2)
    ]
    for kind, tensors in (("model", strategy.model_state()), ("optimizer", strategy.optimizer_state())):
        names = [name for copy in copies for name in getattr(copy, kind)]
        assert len(names) == len(set(names))
        saved = dict(tensors)
        assert set(names) == saved.keys()
        assert all(getattr(copy, kind) for copy in copies[:2]) and not getattr(copies[2], kind)
        # a copy, and not the tensor
        for copy in copies:
            for name, tensor in getattr(copy, kind).items():
                assert tensor.equal(saved[name]) and tensor.data_ptr() != saved[name].data_ptr()


class StillReference(Reference):
    """A reference policy that has followed."""

    def __init__(self, strategy: StillStrategy) -> None:
        self._weights = [(name, tensor + 1) for name, tensor in strategy.model.named_parameters()]

    def logprobs(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def state(self) -> NamedTensors:
        yield from self._weights


def test_each_rank_writes_its_shard_of_a_reference_policy_that_changes(tmp_path: Path) -> None:
    strategy = StillStrategy(tmp_path / "tiny")
    reference = StillReference(strategy)
    shards = []
    for rank in (0, 1):
        copy = HostCopier(
            strategy.model,
            strategy,  # type: ignore[arg-type]
            rank=rank,
            num_writers=2,
            reference=reference,
        ).copy()
        written = write_shard(tmp_path, copy, model=strategy.model, rank=rank, num_writers=2)
        assert f"reference-0000{rank + 1}-of-00002.safetensors" in written.files
        shards.append(written)
    complete_checkpoint(
        tmp_path,
        model=strategy.model,
        tokenizer=strategy.tokenizer,
        state=RunState(step=1),
        shards=shards,
    )
    found = read_training_state(tmp_path).reference
    expected = dict(reference.state())
    assert found.keys() == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in found.items())
