"""Groups while they are filled: in which order and thread samples come changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from polling import wait_until

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.process.background import LoopThread
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import FailureKind, OpenCalls, RewardFailure
from grpo_runtime.rollouts.collect import Collection, Take
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout

PROMPT = Prompt(index=0, content="a=", columns={})
FAILURE = RewardFailure(name="a", kind=FailureKind.LOST, reason="late", num_samples=2, sample={})


def make_groups(count: int = 2) -> list[Group]:
    requests = [GenerateRequest((9,), seed=seed) for seed in (0, 1)]
    return [Group(step=3, number=number, prompt=PROMPT, requests=requests) for number in range(count)]


def rollout(token: int) -> Rollout:
    return Rollout((9,), (token,), (-1.0,), (), True, "fake")


class ScriptedSource:
    """Makes the samples `order`, each the number of its group and its place, and fails after them if there is
    an `error`. `asked` are the groups of each call."""

    def __init__(self, order: Sequence[tuple[int, int]], *, error: Exception | None = None) -> None:
        self.asked: list[list[int]] = []
        self._order, self._error = order, error

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        self.asked.append([group.number for group in groups])
        by_number = {group.number: group for group in groups}
        for number, sample in self._order:
            # engines pass samples on from threads of their own
            await asyncio.to_thread(take, by_number[number], sample, rollout(10 * number + sample))
        if self._error is not None:
            raise self._error


class ScriptedScorer:
    """The rewards of a group are its number; groups in `failing` have a failure, those in `held` are scored
    once it lets go of them."""

    def __init__(self, *, failing: Sequence[int] = (), held: Sequence[int] = ()) -> None:
        self.scored: list[int] = []
        self.judged: list[list[int]] = []
        self.judge_error: Exception | None = None
        self.is_held = {number: asyncio.Event() for number in held}
        self._failing = failing

    async def score(self, group: Group) -> tuple[Column, ...]:
        self.scored.append(group.number)
        if group.number in self.is_held:
            await self.is_held[group.number].wait()
        failures = (FAILURE,) if group.number in self._failing else ()
        return (Column(values=[float(group.number)] * 2, failures=failures),)

    def judge(self, groups: Sequence[Group], *, step: int) -> None:
        assert {group.step for group in groups} == {step}
        self.judged.append([group.number for group in groups])
        if self.judge_error is not None:
            raise self.judge_error

    def open_calls(self) -> list[OpenCalls]:
        return [OpenCalls(name="accuracy", number=1)]

    def name_of(self, group: Group) -> str:
        return f"step {group.step + 1}"


class RecordingJournal:
    """What it is told, in order."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, int]] = []
        self.groups: list[int] = []

    def sampled(self, group: Group, sample: int) -> None:
        assert group.rollouts[sample] is not None
        self.samples.append((group.number, sample))

    def scored(self, group: Group) -> None:
        assert group.is_scored
        self.groups.append(group.number)


@pytest.fixture
async def thread() -> AsyncIterator[LoopThread]:
    async with LoopThread("rollouts") as made:
        yield made


def collection(groups: Sequence[Group], thread: LoopThread, **parts: Any) -> Collection:
    parts = {"scorer": ScriptedScorer(), "journal": RecordingJournal(), **parts}
    return Collection(groups, thread=thread, **parts)


async def test_a_group_is_scored_once_it_has_all_of_its_samples_whatever_the_others_have(
    thread: LoopThread,
) -> None:
    groups, scorer, journal = make_groups(3), ScriptedScorer(), RecordingJournal()
    order = [(2, 1), (0, 0), (1, 0), (1, 1), (2, 0), (0, 1)]
    made = collection(groups, thread, scorer=scorer, journal=journal)
    await made.sample(ScriptedSource(order))
    await made.score()
    assert journal.samples == order
    assert scorer.scored == [1, 2, 0] and sorted(journal.groups) == [0, 1, 2]
    assert [group.rewards for group in groups] == [[(number,)] * 2 for number in (0.0, 1.0, 2.0)]
    assert [[one.completion_ids for one in group.completions] for group in groups] == [
        [(0,), (1,)],
        [(10,), (11,)],
        [(20,), (21,)],
    ]
    assert scorer.judged == [[0, 1, 2]]


async def test_what_is_there_already_is_neither_sampled_nor_scored_again(thread: LoopThread) -> None:
    sampled, scored, begun = make_groups(3)
    sampled.rollouts, scored.rollouts, begun.rollouts[1] = [rollout(1)] * 2, [rollout(2)] * 2, rollout(3)
    scored.columns = (Column(values=[7.0, 7.0]),)
    scorer, journal, source = ScriptedScorer(), RecordingJournal(), ScriptedSource([(2, 0)])
    made = collection([sampled, scored, begun], thread, scorer=scorer, journal=journal)
    await made.sample(source)
    await made.score()
    assert (source.asked, journal.samples) == ([[2]], [(2, 0)])
    assert sorted(scorer.scored) == sorted(journal.groups) == [0, 2]
    assert scored.rewards == [(7.0,), (7.0,)]
    # failures of a step are judged together, also those of groups that the journal had
    assert scorer.judged == [[0, 1, 2]]


async def test_nothing_is_asked_or_judged_of_groups_that_are_whole(thread: LoopThread) -> None:
    groups = make_groups()
    for group in groups:
        group.rollouts, group.columns = [rollout(1)] * 2, (Column(values=[1.0, 1.0]),)
    scorer, source = ScriptedScorer(), ScriptedSource([])
    made = collection(groups, thread, scorer=scorer)
    await made.sample(source)
    await made.score()
    assert (source.asked, scorer.scored, scorer.judged) == ([], [], [])


@pytest.mark.parametrize("is_too_much", [False, True])
async def test_a_group_on_which_a_function_failed_is_in_the_journal_only_if_it_is_trained_on(
    thread: LoopThread, is_too_much: bool
) -> None:
    """Otherwise the next attempt would not ask the function again."""
    groups, scorer, journal = make_groups(), ScriptedScorer(failing=[1]), RecordingJournal()
    scorer.judge_error = UserError("too many failures") if is_too_much else None
    made = collection(groups, thread, scorer=scorer, journal=journal)
    await made.sample(ScriptedSource([(0, 0), (0, 1), (1, 0), (1, 1)]))
    if is_too_much:
        with pytest.raises(UserError, match="too many failures"):
            await made.score()
    else:
        await made.score()
    assert journal.groups == ([0] if is_too_much else [0, 1])


async def test_what_a_source_raises_ends_the_wait_and_keeps_what_was_finished(thread: LoopThread) -> None:
    groups, journal = make_groups(), RecordingJournal()
    made = collection(groups, thread, journal=journal)
    with pytest.raises(ConnectionError, match="lost"):
        await made.sample(ScriptedSource([(1, 0)], error=ConnectionError("lost")))
    assert journal.samples == [(1, 0)]


async def test_samples_are_scored_while_the_thread_that_trains_computes(thread: LoopThread) -> None:
    groups = make_groups(1)
    made = collection(groups, thread)
    sampling = asyncio.ensure_future(made.sample(ScriptedSource([(0, 0), (0, 1)])))
    await asyncio.sleep(0)
    # this thread blocks, as in an update of the policy
    wait_until(lambda: groups[0].is_scored, "the group is scored")
    assert not sampling.done()
    await sampling


async def test_a_step_says_how_many_groups_are_scored_once_none_was_for_some_seconds(
    thread: LoopThread,
) -> None:
    now = [100.0]
    groups, scorer = make_groups(), ScriptedScorer(held=[0, 1])
    made = collection(groups, thread, scorer=scorer, clock=lambda: now[0])
    await made.sample(ScriptedSource([(0, 0), (0, 1), (1, 0), (1, 1)]))
    now[0] = 105.0
    waiting = asyncio.ensure_future(made.score())
    await asyncio.to_thread(wait_until, lambda: made._quiet_since == 105.0, "the wait has begun")
    now[0] = 106.0
    thread.call_soon(scorer.is_held[1].set)
    await asyncio.to_thread(wait_until, lambda: made._quiet_since == 106.0, "the group is scored")
    now[0] = 115.9
    assert made.waits_for() == ""
    now[0] = 116.0
    assert made.waits_for() == (
        "step 4: 1 of 2 groups are scored, and none was in the last 10 s; open calls of reward accuracy: 1"
    )
    thread.call_soon(scorer.is_held[0].set)
    await waiting


async def test_after_a_stop_the_scoring_has_ended_and_what_was_finished_is_in_the_journal(
    thread: LoopThread,
) -> None:
    now = [100.0]
    groups, scorer, journal = make_groups(), ScriptedScorer(held=[0, 1]), RecordingJournal()
    made = collection(groups, thread, scorer=scorer, journal=journal, clock=lambda: now[0])
    await made.sample(ScriptedSource([(0, 0), (0, 1), (1, 0), (1, 1)]))
    now[0] = 105.0
    scoring = asyncio.ensure_future(made.score())
    await asyncio.to_thread(wait_until, lambda: made._quiet_since == 105.0, "the wait has begun")
    thread.call_soon(scorer.is_held[0].set)
    await asyncio.to_thread(wait_until, lambda: journal.groups == [0], "the first group is scored")
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    # nothing is left that could score it
    thread.call_soon(scorer.is_held[1].set)
    await thread.run(asyncio.sleep(0))
    assert (len(journal.samples), journal.groups, groups[1].is_scored) == (4, [0], False)
    assert scorer.judged == []


async def test_a_sample_that_comes_after_the_thread_has_ended_is_in_the_journal() -> None:
    """Its engine was not asked to stop, and must not see an error."""
    groups, journal = make_groups(1), RecordingJournal()
    thread = LoopThread("rollouts")
    made = collection(groups, thread, journal=journal)
    await thread.close()
    for sample in (0, 1):
        made.take(groups[0], sample, rollout(sample))
    assert (journal.samples, groups[0].is_scored) == ([(0, 0), (0, 1)], False)
