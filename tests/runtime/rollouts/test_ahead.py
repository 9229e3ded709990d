"""Groups begun ahead, over a scripted source: thousands of steps with lost engines, failures and filters."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from scripted_groups import ScriptedScorer, ScriptedSource, group_of, settle
from simulated_time import SimulatedLoop

from grpo_api.contract.left_out import MOST_FAILED_IN_A_ROW
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.ahead import AheadOptions, GroupsAhead, Outstanding
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.function.tries import PAUSES_SECONDS
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    EngineError,
    FunctionFailedError,
    Generation,
    GivenUp,
    Rollout,
    VersionSpan,
)
from grpo_runtime.rollouts.journal.journal import NoJournal
from grpo_runtime.rollouts.staleness import StalenessBound


def make(
    *,
    max_staleness: int = 1,
    groups_per_step: int = 2,
    total_steps: int = 10,
    drops_stale: bool = False,
    is_planned: bool = False,
    max_rounds: int | None = None,
    scorer: ScriptedScorer | None = None,
    clock: Callable[[], float] = time.monotonic,
    group_size: int = 2,
    source: Any = None,
    failures: FailuresInARow | None = None,
) -> tuple[GroupsAhead, ScriptedSource]:
    ordinals = itertools.count()
    source = source or ScriptedSource()
    ahead = GroupsAhead(
        AheadOptions(
            bound=StalenessBound(max_staleness=max_staleness, groups_per_step=groups_per_step),
            total_steps=total_steps,
            drops_stale=drops_stale,
            is_planned=is_planned,
            max_rounds=max_rounds,
            advantages=AdvantageOptions(group_size=group_size, weights=(1.0,)),
        ),
        draw=lambda step: group_of(next(ordinals), step=step, size=group_size),
        give_back=lambda ordinals: None,
        source=source,
        scorer=scorer or ScriptedScorer(),  # type: ignore[arg-type]
        journal=NoJournal(),
        failures=failures or FailuresInARow(groups_per_step=groups_per_step),
        clock=clock,
    )
    return ahead, source


@dataclass
class Played:
    """What became of every group, by ordinal."""

    trained: list[list[int]] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of each step, for which it waited for its groups."""


async def play(
    ahead: GroupsAhead, source: ScriptedSource, *, draw: random.Random, steps: int, sync_every: int
) -> Played:
    """Train `steps` steps while whatever happens to groups happens."""
    played = Played()
    failing, lost = draw.choice([0.0, 0.1]), draw.choice([0.0, 0.2])

    def happen() -> None:
        ordinal = draw.choice(source.open)
        chance = draw.random()
        if chance < failing:
            source.fail(ordinal)
        elif chance < failing + lost:
            source.lose_engine(ordinal)
        elif chance < 0.6:
            source.finish(ordinal)
        elif source.num_missing(ordinal) > 1:
            source.finish_one_sample(ordinal)

    for step in range(steps):
        if step % sync_every == 0:
            source.version = step
            ahead.serve(step)
        choosing = asyncio.ensure_future(ahead.choose(step))
        await settle()
        while not choosing.done():
            assert source.open, "the run waits for nothing"
            happen()
            await settle()
        ended = choosing.result()
        ahead.take(ended)
        played.trained.append([one.ordinal for one in ended.trained])
        played.staleness += [step - one.version for one in ended.trained]
        played.others += [one.ordinal for one in (*ended.filtered, *ended.failed, *ended.dropped)]
        ahead.begin_more()
        await settle()
        for _ in range(draw.randint(0, 8)):  # while the step is trained
            if source.open:
                happen()
                await settle()
    played.left = [one.ordinal for one in ahead.outstanding]
    await ahead.close()
    return played


@pytest.mark.parametrize("max_staleness", [1, 2, 4, 8])
@pytest.mark.parametrize("policy", ["wait", "drop", "planned"])
async def test_no_group_is_trained_too_late_lost_or_used_twice(max_staleness: int, policy: str) -> None:
    for seed in range(25):
        draw = random.Random(seed)
        per_step, steps = draw.randint(1, 5), 12
        is_filtered = draw.random() < 0.3
        teaches = {ordinal: draw.random() < 0.6 for ordinal in range(1000)}
        scorer = ScriptedScorer(
            lambda ordinal, teaches=teaches, is_filtered=is_filtered: (  # type: ignore[misc]
                0.0,
                1.0 if teaches[ordinal] or not is_filtered else 0.0,
            )
        )
        ahead, source = make(
            max_staleness=max_staleness,
            groups_per_step=per_step,
            total_steps=steps,
            drops_stale=policy == "drop",
            is_planned=policy == "planned",
            max_rounds=draw.randint(1, 4) if is_filtered else None,
            scorer=scorer,
        )
        played = await play(ahead, source, draw=draw, steps=steps, sync_every=draw.randint(1, max_staleness))
        assert max(played.staleness) <= max_staleness
        used = [ordinal for trained in played.trained for ordinal in trained]
        ended = sorted([*used, *played.others, *played.left])
        assert ended == list(range(len(ended)))
        assert all(len(trained) <= per_step for trained in played.trained)
        if not is_filtered:
            assert all(len(trained) == per_step for trained in played.trained)
            assert policy != "planned" or used == sorted(used)
        # the last steps begin no group that none could train
        assert not played.left


async def test_the_last_steps_begin_no_more_than_they_train() -> None:
    ahead, source = make(max_staleness=4, total_steps=2)
    ahead.serve(0)
    await settle()
    assert source.open == [0, 1, 2, 3]
    await ahead.close()


async def test_what_finished_first_is_trained_first() -> None:
    ahead, source = make()
    ahead.serve(0)
    await settle()
    assert source.open == [0, 1, 2, 3], "two steps' worth of groups"
    source.finish(3)
    await settle()
    source.finish(1)
    ended = await ahead.choose(0)
    assert [one.ordinal for one in ended.trained] == [3, 1]
    ahead.take(ended)
    ahead.begin_more()
    await settle()
    assert source.open == [0, 2], "until engines have newer weights"
    source.version = 1
    ahead.serve(1)
    await settle()
    assert source.open == [0, 2, 4, 5]
    await ahead.close()


async def test_a_group_that_would_become_too_old_is_dropped_when_enough_others_are_there() -> None:
    ahead, source = make(drops_stale=True)
    ahead.serve(0)
    await settle()
    for ordinal in (1, 2):
        source.finish(ordinal)
    ahead.take(await ahead.choose(0))
    source.version = 1
    ahead.serve(1)
    await settle()
    choosing = asyncio.ensure_future(ahead.choose(1))
    source.finish(3)
    await settle()
    assert not choosing.done(), "one is missing, whichever it will be"
    source.finish(4)
    ended = await choosing
    assert [one.ordinal for one in ended.dropped] == [0]
    assert [one.ordinal for one in ended.trained] == [3, 4]
    await settle()
    assert 0 not in source.open
    await ahead.close()


async def test_a_group_that_fails_costs_no_other_one_and_many_in_a_row_end_the_run() -> None:
    ahead, source = make()
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    for _ in range(MOST_FAILED_IN_A_ROW - 1):
        await settle()
        source.fail(source.open[0])
    await settle()
    assert not choosing.done() and len(source.open) == 4
    source.fail(source.open[0])
    with pytest.raises(EngineError, match="engines refuse group"):
        await choosing
    await ahead.close()


async def test_a_group_is_trained_with_what_it_has_or_left_out_and_another_one_sampled() -> None:
    scorer = ScriptedScorer(lambda ordinal: (0.0, 1.0, 2.0, 3.0))
    ahead, source = make(scorer=scorer, group_size=4)
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    await settle()
    for _ in range(3):
        source.give_up_one_sample(0)
    for _ in range(2):
        source.give_up_one_sample(1)
    for ordinal in (0, 1, 2):
        source.finish(ordinal)
    ended = await choosing
    assert [one.ordinal for one in ended.trained] == [1, 2]
    assert [one.ordinal for one in ended.failed] == [0]
    assert [len(one.group.completions) for one in ended.trained] == [2, 4]
    assert 4 in source.open
    # nobody is asked for rewards of what there is not
    assert scorer.scored == [1, 2]
    assert [one.group.rewards for one in ended.trained] == [
        [(0.0,), (1.0,)],
        [(0.0,), (1.0,), (2.0,), (3.0,)],
    ]
    await ahead.close()


async def test_many_groups_in_a_row_that_are_left_out_end_the_run_with_the_failure_of_the_last() -> None:
    ahead, source = make()
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    for _ in range(MOST_FAILED_IN_A_ROW):
        await settle()
        ordinal = source.open[0]
        source.give_up_one_sample(ordinal)
        source.finish(ordinal)
    with pytest.raises(FunctionFailedError, match=f"the agent of group {ordinal} raised"):
        await choosing
    await ahead.close()


@dataclass(kw_only=True)
class InWaves:
    """A group takes a second. Every second one may be `failing`, those of even ordinals (0) or odd ones (1):
    it is given up after the pauses between its tries, in the same moment as all that were begun with it."""

    failing: Collection[int]
    version: int = 0

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        [group] = groups
        found: Rollout | GivenUp = rollout_of(version=self.version)
        if group.number % 2 in self.failing:
            await asyncio.sleep(sum(PAUSES_SECONDS))
            found = GivenUp(f"the agent of group {group.number} raised")
        else:
            await asyncio.sleep(1.0)
        for sample in group.missing:
            take(group, sample, found)


def failures_of(num_environments: int) -> FailuresInARow:
    """Of so many environments, which make groups in turn."""
    return FailuresInARow(
        groups_per_step=MOST_FAILED_IN_A_ROW,
        environments=[str(number) for number in range(num_environments)],
        environment=lambda group: str(group.number % num_environments),
    )


def train_in_waves(failing: Collection[int], *, num_environments: int, policy: str) -> Played:
    """A run, in simulated time, of so many environments, which make its groups in turn; `policy` as above."""
    source, played = InWaves(failing=failing), Played()
    ahead, _ = make(
        groups_per_step=MOST_FAILED_IN_A_ROW,
        total_steps=8,
        drops_stale=policy == "drop",
        is_planned=policy == "planned",
        source=source,
        failures=failures_of(num_environments),
    )

    async def train() -> None:
        for step in range(8):
            source.version = step
            ahead.serve(step)
            begun_at = asyncio.get_running_loop().time()
            ended = await ahead.choose(step)
            played.seconds.append(asyncio.get_running_loop().time() - begun_at)
            ahead.take(ended)
            played.trained.append([one.ordinal for one in ended.trained])
            played.others += [one.ordinal for one in ended.failed]
            ahead.begin_more()
            await asyncio.sleep(1.0)  # it is trained
        await ahead.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(train())
    return played


@pytest.mark.parametrize("policy", ["wait", "drop", "planned"])
def test_an_environment_that_fails_in_waves_ends_no_run_and_starves_no_other_one(policy: str) -> None:
    played = train_in_waves([1], num_environments=2, policy=policy)
    assert [len(trained) for trained in played.trained] == [MOST_FAILED_IN_A_ROW] * 8
    assert not any(ordinal % 2 for trained in played.trained for ordinal in trained)
    assert all(ordinal % 2 for ordinal in played.others)
    assert len(played.others) > 4 * MOST_FAILED_IN_A_ROW, "many fail one after the other"
    # a step waits for one wave; the last one, with none ahead, for a wave each time that it halves its lack
    *seconds, last = played.seconds
    wave = sum(PAUSES_SECONDS)
    assert max(seconds) <= wave and last <= math.log2(2 * MOST_FAILED_IN_A_ROW) * wave


@pytest.mark.parametrize("policy", ["wait", "drop", "planned"])
@pytest.mark.parametrize("num_environments", [1, 2])
def test_where_all_of_them_fail_the_run_ends_with_the_failure(num_environments: int, policy: str) -> None:
    with pytest.raises(FunctionFailedError, match=r"the agent of group \d+ raised"):
        train_in_waves([0, 1], num_environments=num_environments, policy=policy)


async def test_what_the_engines_fail_counts_for_every_environment() -> None:
    ahead, source = make(groups_per_step=MOST_FAILED_IN_A_ROW, failures=failures_of(2))
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    await settle()
    for ordinal in range(0, 2 * MOST_FAILED_IN_A_ROW, 2):
        source.fail(ordinal)
        await settle()
    with pytest.raises(EngineError, match="engines refuse group"):
        await choosing
    await ahead.close()


def test_the_version_of_a_group_is_that_of_the_samples_that_there_are() -> None:
    group = group_of(0, step=4)
    group.rollouts = [rollout_of(version=5), GivenUp("the agent raised")]
    assert Outstanding(group=group, served=2).version == 5


async def test_a_group_that_is_finished_ends_a_row_of_failures() -> None:
    ahead, source = make(groups_per_step=40, total_steps=2)
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    await settle()
    for ordinal in range(40):
        if ordinal % 2:
            source.finish(ordinal)
        else:
            source.fail(ordinal)
        await settle()
    assert not choosing.done()
    for ordinal in range(40, 60):
        source.finish(ordinal)
    ended = await choosing
    assert [one.ordinal for one in ended.failed] == list(range(0, 40, 2))
    await ahead.close()


async def test_another_error_ends_the_step_that_waits() -> None:
    class Broken(ScriptedScorer):
        async def score(self, group):  # type: ignore[no-untyped-def]
            raise TypeError("a bug")

    ahead, source = make(scorer=Broken())
    ahead.serve(0)
    await settle()
    source.finish(0)
    with pytest.raises(TypeError, match="a bug"):
        await ahead.choose(0)
    await ahead.close()


async def test_where_no_group_teaches_anything_a_step_ends_after_its_last_round() -> None:
    ahead, source = make(max_rounds=2, scorer=ScriptedScorer(lambda ordinal: (1.0, 1.0)))
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    for _ in range(4):
        await settle()
        assert not choosing.done()
        source.finish(source.open[0])
    ended = await choosing
    assert [one.ordinal for one in ended.trained] == [0, 1]
    assert [one.ordinal for one in ended.filtered] == [2, 3]
    await ahead.close()


async def test_the_last_step_is_trained_on_fewer_groups_where_its_rounds_do_not_suffice() -> None:
    ahead, source = make(
        max_rounds=2, total_steps=1, scorer=ScriptedScorer(lambda ordinal: (0.0, ordinal // 3))
    )
    ahead.serve(0)
    choosing = asyncio.ensure_future(ahead.choose(0))
    for _ in range(4):
        await settle()
        assert not choosing.done()
        source.finish(source.open[0])
    await settle()
    ended = choosing.result()
    assert [one.ordinal for one in ended.trained] == [3]
    assert [one.ordinal for one in ended.filtered] == [0, 1, 2]
    await ahead.close()


def test_the_version_of_a_group_is_that_of_its_oldest_token() -> None:
    group = group_of(0, step=3)
    one = Outstanding(group=group, served=3)
    assert one.version == 3
    source = ScriptedSource()
    source._takes[0] = (group, lambda group, sample, rollout: group.rollouts.__setitem__(sample, rollout))
    for begun, now, expected in ((4, 6, 3), (5, 5, 4)):
        source._begun_with[0], source.version = begun, now
        source.finish_one_sample(0)
        assert one.version == expected


def test_the_oldest_token_may_be_in_any_sequence_of_an_episode() -> None:
    group = group_of(0, step=4)
    branches = (rollout_of(version=2), rollout_of(version=4))
    group.rollouts = [rollout_of(version=5), replace(rollout_of(version=3), branches=branches)]
    assert Outstanding(group=group, served=4).version == 2


class SilentScorer(ScriptedScorer):
    """Reward functions that do not answer about groups from the second on."""

    async def score(self, group: Group) -> tuple[Column, ...]:
        if group.number > 0:
            await asyncio.get_running_loop().create_future()
        return await super().score(group)


async def test_what_a_step_waits_for_is_said_in_groups_samples_before_rewards() -> None:
    now = [0.0]
    ahead, source = make(max_staleness=1, groups_per_step=2, scorer=SilentScorer(), clock=lambda: now[0])
    ahead.serve(0)
    await settle()
    source.finish(0)
    await settle()
    generation = Generation(num_samples=6, num_done=0, quiet_seconds=15.0, given={"rollout-0": 6})
    assert ahead.waits_for(replace(generation, quiet_seconds=3.0)) == ""
    samples = (
        "step 1: 1 of 2 groups are finished; {} are being sampled, and no sample was finished in the last "
        "10 s; open are 6 on rollout-0"
    )
    assert ahead.waits_for(generation) == samples.format(3)
    source.finish(1)
    await settle()
    now[0] = 35.0
    assert ahead.waits_for(generation) == samples.format(2)
    rewards = "step 1: 1 of 2 groups are scored, and none was in the last 30 s"
    assert ahead.waits_for(replace(generation, quiet_seconds=3.0)) == rewards
    assert ahead.waits_for(None) == rewards
    await ahead.close()


class FilledMeanwhile(list[Any]):
    """Samples of which another thread finishes the second one as soon as they have been read."""

    def __iter__(self) -> Iterator[Any]:
        yield from list(super().__iter__())
        self[1] = rollout_of(version=2)


def test_a_sample_that_comes_while_the_version_is_asked_for_makes_no_group_younger() -> None:
    group = group_of(0, step=4)
    group.rollouts = FilledMeanwhile([rollout_of(version=5), None])
    assert Outstanding(group=group, served=2).version == 2


def test_nor_does_one_that_goes_on_from_older_weights_than_any_engine_has() -> None:
    group = group_of(0, step=4)
    group.go_on_from(1, rollout_of(version=2))
    group.rollouts = FilledMeanwhile([rollout_of(version=5), None])
    assert Outstanding(group=group, served=4).version == 2


def rollout_of(*, version: int) -> Rollout:
    span = VersionSpan(PolicyVersion(1, version), 0, 1)
    return Rollout((0,), (7,), (-0.5,), (span,), True, "scripted")
