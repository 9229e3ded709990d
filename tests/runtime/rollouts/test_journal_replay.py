"""What the journal has of a step after a restart. No other process, nothing trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.group import Group, completions_of, rewards_of
from grpo_runtime.rollouts.interface import GenerateRequest, GivenUp, Rollout, VersionSpan
from grpo_runtime.rollouts.journal.journal import CHECKSUM, DIFFERS, REPLAYED, Journal
from grpo_runtime.rollouts.journal.reader import file_of, read_step, step_folders

GROUP, SAMPLES = 2, 4
DIGEST = "0000000a" * 4


def groups_of(step: int) -> list[Group]:
    return [
        Group(
            step=step,
            number=number,
            prompt=Prompt(index=number, content=f"{number}=", columns={}),
            requests=[
                GenerateRequest((number,), seed=100 * step + number * GROUP + sample)
                for sample in range(GROUP)
            ],
        )
        for number in range(SAMPLES // GROUP)
    ]


def seeds_of(step: int) -> list[int]:
    return [request.seed for group in groups_of(step) for request in group.requests]


def sample(group: Group, place: int, *, attempt: int = 1) -> None:
    """A fake engine, which answers the seed of a request as its token."""
    request = group.requests[place]
    span = VersionSpan(PolicyVersion(attempt, group.step), 0, 1)
    group.rollouts[place] = Rollout(request.prompt_ids, (request.seed,), (-0.5,), (span,), True, "fake")


class Run:
    """One attempt after the other, over one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[Journal] = []

    def attempt(self, number: int) -> Journal:
        journal = Journal(
            self._folder,
            job_uid="uid",
            attempt=number,
            reward_names=["a"],
            layout="DDP over 1",
            sampling=1,
        )
        self._open.append(journal)
        return journal

    def close(self) -> None:
        for journal in self._open:
            journal.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.close()


@dataclass
class Done:
    """What came of a step: how many samples it had from the journal, and what was left to do."""

    num_replayed: int
    seeds: list[int]
    """Of the samples that were made."""
    scored: list[int]
    """The groups that were scored."""


def begin(journal: Journal, step: int, *, num_samples: int = SAMPLES, num_groups: int = 9) -> Done:
    """Sample and score what is missing, up to so many samples and groups; then the attempt is killed."""
    groups = groups_of(step)
    done = Done(journal.restore(groups), [], [])
    for group in groups:
        for place in group.missing:
            if len(done.seeds) < num_samples:
                sample(group, place)
                journal.sampled(group, place)
                done.seeds.append(group.requests[place].seed)
    for group in groups:
        if group.is_sampled and not group.is_scored and len(done.scored) < num_groups:
            group.columns = (Column(values=[float(step)] * GROUP, logged={"mine": [1.0]}),)
            journal.scored(group)
            done.scored.append(group.number)
    if num_samples == SAMPLES and num_groups == 9:
        assert [one.completion_ids[0] for one in completions_of(groups)] == seeds_of(step)
        assert rewards_of(groups).tolist() == [[float(step)]] * SAMPLES
    journal._writer.wait()
    return done


def do(journal: Journal, step: int) -> Done:
    """A whole step."""
    done = begin(journal, step)
    journal.trained(step, DIGEST)
    journal._writer.wait()
    return done


def test_a_whole_step_is_neither_sampled_nor_scored_again(run: Run) -> None:
    do(run.attempt(1), 3)
    assert do(run.attempt(2), 3) == Done(SAMPLES, [], [])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_only_the_samples_that_are_missing_are_sampled(run: Run, count: int) -> None:
    begin(run.attempt(1), 3, num_samples=count, num_groups=0)
    assert do(run.attempt(2), 3) == Done(count, seeds_of(3)[count:], [0, 1])


def test_samples_without_rewards_are_only_scored(run: Run) -> None:
    begin(run.attempt(1), 3, num_groups=0)
    assert do(run.attempt(2), 3) == Done(SAMPLES, [], [0, 1])


@pytest.mark.parametrize("num_samples", [3, 4])
def test_of_a_step_that_is_scored_in_part_whole_groups_keep_their_rewards(run: Run, num_samples: int) -> None:
    begin(run.attempt(1), 3, num_samples=num_samples, num_groups=1)
    assert do(run.attempt(2), 3) == Done(num_samples, seeds_of(3)[num_samples:], [1])


def test_what_was_given_up_is_not_tried_again_and_the_group_is_as_it_was(run: Run) -> None:
    """Also one that is left out, of which nothing is scored."""
    first = run.attempt(1)
    part, left_out = a_partial_group(3, number=0), a_partial_group(3, number=1)
    first.restore([part, left_out])
    for group, given_up in ((part, 1), (left_out, 3)):
        for place in range(4):
            sample(group, place)
            if place < given_up:
                group.rollouts[place] = GivenUp(f"sample {place} failed")
            first.sampled(group, place)
    part.columns = (Column(values=[1.0, 2.0, 3.0]),)
    first.scored(part)
    first.trained(3, DIGEST)
    first._writer.wait()
    second = run.attempt(2)
    again = [a_partial_group(3, number=number) for number in (0, 1)]
    assert second.restore(again) == 3 + 1
    assert [group.missing for group in again] == [[], []]
    assert [group.rollouts for group in again] == [part.rollouts, left_out.rollouts]
    assert again[0].is_scored and again[1].is_left_out
    assert again[0].rewards == [(1.0,), (2.0,), (3.0,)]
    # so that what follows is replayed too
    assert second.trained(3, DIGEST)[REPLAYED] == 4
    assert second._is_replaying


def test_a_group_that_is_left_out_and_misses_a_sample_is_not_whole(run: Run) -> None:
    first = run.attempt(1)
    group = a_partial_group(3, number=0)
    first.restore([group])
    for place in range(3):
        group.rollouts[place] = GivenUp(f"sample {place} failed")
        first.sampled(group, place)
    first._writer.wait()
    second = run.attempt(2)
    again = a_partial_group(3, number=0)
    assert (second.restore([again]), again.missing) == (0, [3])
    assert not second._is_replaying


def a_partial_group(step: int, *, number: int) -> Group:
    requests = [GenerateRequest((number,), seed=100 * step + number * 10 + place) for place in range(4)]
    prompt = Prompt(index=number, content=f"{number}=", columns={})
    return Group(step=step, number=number, prompt=prompt, requests=requests)


def test_every_attempt_adds_what_it_has_sampled(run: Run) -> None:
    begin(run.attempt(1), 3, num_samples=1)
    begin(run.attempt(2), 3, num_samples=2)
    assert do(run.attempt(3), 3).seeds == seeds_of(3)[3:]
    assert do(run.attempt(4), 3) == Done(SAMPLES, [], [])


def test_a_step_may_come_in_several_rounds(run: Run) -> None:
    first = run.attempt(1)
    do(first, 3)
    second = run.attempt(2)
    found = [(group, second.restore([group])) for group in groups_of(3)]
    assert [(group.is_scored, count) for group, count in found] == [(True, GROUP)] * 2
    assert second.trained(3, DIGEST)[REPLAYED] == SAMPLES


def test_a_later_round_of_a_step_is_replayed_though_an_earlier_one_was_not_whole(run: Run) -> None:
    first = run.attempt(1)
    earlier, later = groups_of(3)
    first.restore([earlier, later])
    for group, places in ((earlier, range(GROUP)), (later, range(1))):
        for place in places:
            sample(group, place)
            first.sampled(group, place)
    first._writer.wait()
    second = run.attempt(2)
    earlier, later = groups_of(3)
    assert (second.restore([earlier]), earlier.is_scored) == (GROUP, False)
    assert (second.restore([later]), later.missing) == (1, [1])


def test_behind_a_step_that_is_not_whole_nothing_is_replayed(run: Run, tmp_path: Path) -> None:
    """Its weights may be others than those that sampled the steps behind it."""
    first = run.attempt(1)
    for step in (2, 3, 4):
        do(first, step)
    file_of(tmp_path, step=3, attempt=1).unlink()
    second = run.attempt(2)
    assert [do(second, step).num_replayed for step in (2, 3)] == [SAMPLES, 0]
    begin(second, 4, num_samples=1)
    # and neither by the attempt after that one
    third = run.attempt(3)
    assert [do(third, step).num_replayed for step in (2, 3, 4)] == [SAMPLES, SAMPLES, 1]


def test_rewards_of_another_set_of_functions_are_not_used(run: Run, tmp_path: Path) -> None:
    do(run.attempt(1), 3)
    other = Journal(tmp_path, job_uid="uid", attempt=2, reward_names=["b"], layout="DDP over 1", sampling=1)
    assert do(other, 3) == Done(SAMPLES, [], [0, 1])
    other.close()
    found = read_step(tmp_path, step=3, attempt=2, job_uid="uid").scored
    for number in (0, 1):
        names = [record.names for record in found[number]]
        assert names == [("b",), ("a",)], "the highest attempt comes first"


@pytest.mark.parametrize(("digest", "differs"), [(DIGEST, 0.0), ("ff" * 16, 1.0)])
def test_weights_that_differ_from_those_before_are_a_warning_and_a_metric(
    run: Run, caplog: pytest.LogCaptureFixture, digest: str, differs: float
) -> None:
    first = run.attempt(1)
    begin(first, 3)
    assert DIFFERS not in first.trained(3, DIGEST)
    second = run.attempt(2)
    first._writer.wait()
    begin(second, 3)
    found = second.trained(3, digest)
    assert found == {REPLAYED: SAMPLES, CHECKSUM: float(int(digest[:8], 16)), DIFFERS: differs}
    assert ("are not those that it had before" in caplog.text) == bool(differs)


def test_what_is_older_than_the_checkpoint_is_forgotten_but_for_what_is_not_trained(
    run: Run, tmp_path: Path
) -> None:
    journal = run.attempt(1)
    for step in range(4):
        begin(journal, step) if step == 1 else do(journal, step)
    journal.forget_before(None)
    journal.forget_before(2)
    journal._writer.wait()
    assert sorted(step_folders(tmp_path)) == [1, 2, 3]
    journal.trained(1, DIGEST)
    journal.forget_before(2)
    journal._writer.wait()
    assert sorted(step_folders(tmp_path)) == [2, 3]


def test_what_lies_beyond_a_step_that_was_done_anew_is_never_replayed(run: Run) -> None:
    """The newest checkpoint is damaged, and the next attempt is killed on its way to where it was."""
    do(run.attempt(1), 6)
    second = run.attempt(2)
    for step in (4, 5):
        do(second, step)
    third = run.attempt(3)
    for step, expected in ((4, []), (5, []), (6, seeds_of(6))):
        assert do(third, step).seeds == expected


def test_an_attempt_that_was_overtaken_removes_nothing_of_the_one_that_goes_on(run: Run) -> None:
    do(run.attempt(2), 6)
    do(run.attempt(1), 4)
    assert do(run.attempt(3), 6).seeds == []
