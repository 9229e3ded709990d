"""A source and reward functions for groups that are begun ahead, which are fakes: what finishes next is what
the test says."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.engines.fleet.engine_calls import joined
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import OpenCalls
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, GivenUp, Rollout, VersionSpan

T = TypeVar("T")
GROUP_SIZE = 2


class SameLoop:
    """In place of the thread of the rollouts."""

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        return asyncio.ensure_future(work)


def group_of(ordinal: int, *, step: int, size: int = GROUP_SIZE) -> Group:
    """The group of the prompt with that ordinal."""
    return Group(
        step=step,
        number=ordinal,
        prompt=Prompt(index=ordinal, content=f"{ordinal}=", columns={}),
        requests=[GenerateRequest((ordinal,), seed=100 * ordinal + sample) for sample in range(size)],
    )


class ScriptedSource:
    """Samples of a group are finished when the test says so; their tokens come of their seeds. `version` is
    that of the engines, `sampled` are the seeds of what is finished, and `went_on_from` has the tokens with
    which the groups asked for had begun, by seed."""

    def __init__(self, *, attempt: int = 1) -> None:
        self.version = 0
        self.sampled: list[int] = []
        self.went_on_from: dict[int, tuple[int, ...]] = {}
        self._attempt = attempt
        self._open: dict[int, asyncio.Future[None]] = {}
        self._takes: dict[int, tuple[Group, Take]] = {}
        self._begun_with: dict[int, int] = {}
        self._so_far: dict[int, Rollout | None] = {}
        """What there is of a sample, by its seed."""

    @property
    def open(self) -> list[int]:
        """Ordinals of the groups that are being sampled."""
        return sorted(self._open)

    def num_missing(self, ordinal: int) -> int:
        """Samples of a group that are not finished."""
        return len(self._takes[ordinal][0].missing)

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        [group] = groups
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[group.number], self._takes[group.number] = ended, (group, take)
        self._begun_with[group.number] = self.version
        for sample in group.missing:
            request = group.requests[sample]
            self.went_on_from[request.seed] = request.so_far.completion_ids if request.so_far else ()
            self._so_far[request.seed] = request.so_far
        try:
            await ended
        finally:
            del self._open[group.number]

    def finish_one_sample(self, ordinal: int) -> None:
        """The first missing sample of a group is finished, with the weights that it was begun with and those
        that engines have now."""
        group, take = self._takes[ordinal]
        sample = group.missing[0]
        self.sampled.append(group.requests[sample].seed)
        take(group, sample, self._rollout(group, sample))

    def hand_over_one_sample(self, ordinal: int) -> None:
        """An engine hands over what it has of the first missing sample of a group."""
        group, take = self._takes[ordinal]
        sample = group.missing[0]
        so_far = replace(self._rollout(group, sample), is_terminated=False, is_aborted=True)
        self._so_far[group.requests[sample].seed] = so_far
        take(group, sample, so_far)

    def _rollout(self, group: Group, sample: int) -> Rollout:
        request, so_far = group.requests[sample], self._so_far.get(group.requests[sample].seed)
        rollout = Rollout(request.prompt_ids, (), (), (), True, "scripted")
        for version in sorted({self._begun_with[group.number], self.version}):
            tokens = (request.seed % 2**31,)
            span = VersionSpan(PolicyVersion(self._attempt, version), 0, 1)
            so_far = joined(
                so_far, replace(rollout, completion_ids=tokens, rollout_logprobs=(-0.5,), versions=(span,))
            )
        assert so_far is not None
        return so_far

    def give_up_one_sample(self, ordinal: int) -> None:
        """Each try to make the first missing sample of a group has failed."""
        group, take = self._takes[ordinal]
        take(group, group.missing[0], GivenUp(f"the agent of group {ordinal} raised"))

    def finish(self, ordinal: int) -> None:
        """Every sample of a group is finished."""
        while self._takes[ordinal][0].missing:
            self.finish_one_sample(ordinal)
        self._end(ordinal, None)

    def fail(self, ordinal: int) -> None:
        """A group cannot be sampled."""
        self._end(ordinal, EngineError(f"engines refuse group {ordinal}"))

    def lose_engine(self, ordinal: int) -> None:
        """What is not finished of a group begins anew, on an engine with the newest weights."""
        self._begun_with[ordinal] = self.version

    def _end(self, ordinal: int, error: Exception | None) -> None:
        ended = self._open[ordinal]
        if not ended.done():
            ended.set_exception(error) if error else ended.set_result(None)


class ScriptedScorer:
    """Rewards by ordinal; `scored` are the groups it was asked about, and `judged` those of each step."""

    def __init__(
        self, rewards: Callable[[int], tuple[float | None, ...]] = lambda ordinal: (0.0, 1.0)
    ) -> None:
        self.names = ["scripted"]
        self.scored: list[int] = []
        self.judged: dict[int, list[int]] = {}
        self._rewards = rewards

    async def score(self, group: Group) -> tuple[Column, ...]:
        assert group.is_sampled
        self.scored.append(group.number)
        return (Column(values=list(self._rewards(group.number))[: len(group.completions)]),)

    def judge(self, groups: Sequence[Group], *, step: int) -> None:
        assert all(group.is_scored for group in groups)
        self.judged[step] = [group.number for group in groups]

    def open_calls(self) -> list[OpenCalls]:
        return []


async def settle() -> None:
    """Let every task that can continue do so."""
    for _ in range(6):
        await asyncio.sleep(0)
