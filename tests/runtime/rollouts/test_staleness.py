"""The bound on staleness, in thousands of scripted runs on a simulated clock."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from grpo_runtime.rollouts.staleness import StalenessBound


@dataclass(eq=False)
class ScriptedGroup:
    ordinal: int
    version: int
    begun_again: int = 0


@dataclass(kw_only=True)
class Script:
    """What happens in a run: seconds of each group and of each update, groups that fail, engines that are
    lost with some of the groups they sample."""

    seconds: Callable[[], float]
    train_seconds: float
    failing: float = 0.0
    lost: float = 0.0
    drops: bool = False
    sync_every: int = 1
    draw: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass
class Played:
    """What became of every group."""

    trained: list[list[ScriptedGroup]] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    num_begun: int = 0
    left: list[ScriptedGroup] = field(default_factory=list)


def play(script: Script, *, bound: StalenessBound, steps: int) -> Played:
    """Run `steps` updates. Engines get the weights of an update as soon as it ends."""
    played, draw = Played(), script.draw
    now, step, version = 0.0, 0, 0
    finished: list[ScriptedGroup] = []
    running: dict[ScriptedGroup, int] = {}
    events: list[tuple[float, int, ScriptedGroup, int]] = []

    def begin(group: ScriptedGroup) -> None:
        running[group] = group.begun_again
        heapq.heappush(events, (now + script.seconds(), group.ordinal, group, group.begun_again))

    def fill() -> None:
        outstanding = len(finished) + len(running)
        for _ in range(bound.room(outstanding, step=len(played.trained), version=version)):
            group = ScriptedGroup(played.num_begun, version)
            played.num_begun += 1
            begin(group)

    def wait_until(time: float) -> None:
        nonlocal now
        while events and events[0][0] <= time:
            now, _, group, begun = heapq.heappop(events)
            if running.get(group) != begun:
                continue
            chance = draw.random()
            if chance < script.failing:
                del running[group]
                played.failed.append(group.ordinal)
            elif chance < script.failing + script.lost:
                group.begun_again, group.version = group.begun_again + 1, version
                begin(group)
            else:
                del running[group]
                finished.append(group)
            fill()
        now = max(now, time)

    fill()
    while step < steps:
        choice = bound.choose(finished, running, step=step)
        if choice.trained:
            played.trained.append(list(choice.trained))
            played.staleness += [step - group.version for group in choice.trained]
            for group in choice.trained:
                finished.remove(group)
            wait_until(now + script.train_seconds)
            step += 1
            version = step if step % script.sync_every == 0 else version
            assert bound.is_kept_by([*finished, *running], step=step)
            fill()
        elif script.drops and choice.due and len(finished) >= bound.groups_per_step:
            for group in choice.due[: choice.num_due]:
                del running[group]
                played.dropped.append(group.ordinal)
            fill()
        else:
            assert events, "the run waits for nothing"
            wait_until(events[0][0])
    played.left = [*finished, *running]
    return played


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("drops", [False, True], ids=["wait", "drop"])
def test_no_token_is_trained_too_late_and_no_group_is_lost_or_used_twice(max_staleness: int, drops: bool):
    for seed in range(200):
        draw = random.Random(seed)
        tail = draw.choice([0.8, 1.2, 3.0])
        script = Script(
            seconds=lambda draw=draw, tail=tail: draw.paretovariate(tail),  # type: ignore[misc]
            train_seconds=draw.choice([0.1, 1.0, 5.0]),
            failing=draw.choice([0.0, 0.1]),
            lost=draw.choice([0.0, 0.2]),
            drops=drops,
            sync_every=draw.randint(1, max(1, max_staleness)),
            draw=draw,
        )
        bound = StalenessBound(max_staleness=max_staleness, groups_per_step=draw.randint(1, 6))
        played = play(script, bound=bound, steps=30)
        assert max(played.staleness) <= max_staleness
        assert all(len(trained) == bound.groups_per_step for trained in played.trained)
        used = [group.ordinal for trained in played.trained for group in trained]
        left = [group.ordinal for group in played.left]
        assert sorted(used + left + played.failed + played.dropped) == list(range(played.num_begun))


def test_dropping_bounds_the_wait_that_one_slow_group_causes():
    def seconds() -> float:
        return next(durations)

    def slow_first() -> list[float]:
        return [1000.0] + [1.0] * 1000

    durations = iter(slow_first())
    bound = StalenessBound(max_staleness=2, groups_per_step=2)
    waited = play(Script(seconds=seconds, train_seconds=1.0), bound=bound, steps=20)
    durations = iter(slow_first())
    dropped = play(Script(seconds=seconds, train_seconds=1.0, drops=True), bound=bound, steps=20)
    assert 0 in [group.ordinal for trained in waited.trained for group in trained]
    assert dropped.dropped == [0]


def test_admission_alone_does_not_bound_the_age_of_a_group():
    bound = StalenessBound(max_staleness=1, groups_per_step=2)
    old, newer = ScriptedGroup(0, 0), [ScriptedGroup(number, 0) for number in (1, 2, 3)]
    assert bound.room(4, step=0, version=0) == 0
    first = bound.choose(newer, [old], step=0)
    assert first.trained == newer[:2], "the two that finished first: the other two have one step left"
    second = bound.choose([newer[2], *(ScriptedGroup(number, 1) for number in (4, 5))], [old], step=1)
    assert second.trained == () and second.due == [old] and second.num_due == 1


def test_what_finished_first_is_trained_first_but_for_groups_that_are_due():
    bound = StalenessBound(max_staleness=1, groups_per_step=2)
    fresh = [ScriptedGroup(number, 2) for number in (10, 11, 12)]
    due = ScriptedGroup(3, 1)
    choice = bound.choose([*fresh, due], [], step=2)
    assert choice.trained == [fresh[0], due]


def test_a_place_is_free_again_when_a_group_ends_in_any_way():
    bound = StalenessBound(max_staleness=2, groups_per_step=4)
    assert bound.room(0, step=0, version=0) == 12
    assert bound.room(12, step=0, version=0) == 0
    assert bound.room(11, step=0, version=0) == 1
    assert bound.room(8, step=1, version=1) == 4
    assert bound.room(8, step=1, version=0) == 0, "engines without the newest weights get less to do"


def test_without_staleness_a_step_trains_what_it_began():
    bound = StalenessBound(max_staleness=0, groups_per_step=3)
    groups = [ScriptedGroup(number, 7) for number in range(3)]
    assert bound.room(0, step=7, version=7) == 3
    assert bound.choose(groups[:2], groups[2:], step=7).trained == ()
    assert bound.choose(groups, [], step=7).trained == groups
