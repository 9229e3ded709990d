"""What the loop gets of the journal: a step with what is left of it. No other process, nothing trained."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.interface import GenerateRequest, OnFinished, Rollout, VersionSpan
from grpo_runtime.trainer.journal.journal import Journal
from grpo_runtime.trainer.journal.reader import file_of, read_step, step_folders
from grpo_runtime.trainer.journal.step import CHECKSUM, DIFFERS, REPLAYED, RecordedStep
from grpo_runtime.trainer.scoring import Scores

GROUP, SAMPLES = 2, 4
DIGEST = "0000000a" * 4


def requests(step: int) -> list[GenerateRequest]:
    return [GenerateRequest((index // GROUP,), seed=100 * step + index) for index in range(SAMPLES)]


class ScriptedEngines:
    """A fake that answers the seed of a request as its token, and fails after `num_finished` samples."""

    def __init__(self, *, attempt: int = 1, num_finished: int = SAMPLES) -> None:
        self.seeds: list[int] = []
        self._attempt = attempt
        self._num_finished = num_finished

    async def generate(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        assert on_finished is not None
        rollouts = []
        for index, request in enumerate(requests):
            if index == self._num_finished:
                raise ConnectionError("lost")
            self.seeds.append(request.seed)
            span = VersionSpan(PolicyVersion(self._attempt, request.seed // 100), 0, 1)
            rollout = Rollout(request.prompt_ids, (request.seed,), (-0.5,), (span,), True, "fake")
            rollouts.append(rollout)
            on_finished(index, rollout)
        return rollouts


class CountingScoring:
    """A fake: the rewards of a step are its number. `told` are the samples it heard of as they finished."""

    def __init__(self, step: int) -> None:
        self.told: list[int] = []
        self.steps: list[int] = []
        self._step = step

    def finished(self, index: int, rollout: Rollout) -> None:
        assert rollout.completion_ids == (requests(self._step)[index].seed,)
        self.told.append(index)

    async def scores(self, rollouts: Sequence[Rollout]) -> Scores:
        self.steps.append(self._step)
        return Scores(values=[(float(self._step),) for _ in rollouts], metrics={"mine": 1.0})


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
            group_size=GROUP,
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


async def do(journal: Journal, step: int) -> tuple[RecordedStep, list[int], list[int]]:
    """A whole step: it, the seeds that were asked for, and the steps that were scored."""
    engines, scoring = ScriptedEngines(), CountingScoring(step)
    recorded = journal.begin(step, requests(step))
    rollouts = await recorded.generate(engines, scoring=scoring)  # type: ignore[arg-type]
    assert sorted(scoring.told) == (list(range(SAMPLES)) if engines.seeds else [])
    assert [rollout.completion_ids[0] for rollout in rollouts] == [r.seed for r in requests(step)]
    scores = await recorded.score(scoring, rollouts)  # type: ignore[arg-type]
    assert scores.rewards.tolist() == [[float(step)]] * SAMPLES
    await recorded.kept()
    recorded.trained(DIGEST)
    recorded._wait()
    return recorded, engines.seeds, scoring.steps


async def generate_some(journal: Journal, step: int, count: int) -> None:
    """A generation that fails after so many samples."""
    recorded = journal.begin(step, requests(step))
    if count < SAMPLES:
        with pytest.raises(ConnectionError):
            await recorded.generate(ScriptedEngines(num_finished=count), scoring=CountingScoring(step))  # type: ignore[arg-type]
    else:
        await recorded.generate(ScriptedEngines(), scoring=CountingScoring(step))  # type: ignore[arg-type]
    recorded._wait()


async def test_a_whole_step_is_neither_sampled_nor_scored_again(run: Run) -> None:
    await do(run.attempt(1), 3)
    recorded, seeds, scored = await do(run.attempt(2), 3)
    assert (recorded.needs_engines, recorded.num_replayed, seeds, scored) == (False, SAMPLES, [], [])


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_only_the_samples_that_are_missing_are_sampled(run: Run, count: int) -> None:
    await generate_some(run.attempt(1), 3, count)
    recorded, seeds, scored = await do(run.attempt(2), 3)
    assert recorded.num_replayed == count
    assert seeds == [request.seed for request in requests(3)[count:]]
    assert scored == [3]


async def test_samples_without_rewards_are_only_scored(run: Run) -> None:
    await generate_some(run.attempt(1), 3, SAMPLES)
    recorded, seeds, scored = await do(run.attempt(2), 3)
    assert (recorded.needs_engines, recorded.is_whole, seeds, scored) == (False, False, [], [3])


async def test_every_attempt_adds_what_it_has_sampled(run: Run) -> None:
    await generate_some(run.attempt(1), 3, 1)
    await generate_some(run.attempt(2), 3, 2)
    _, seeds, _ = await do(run.attempt(3), 3)
    assert seeds == [requests(3)[3].seed]
    _, seeds, scored = await do(run.attempt(4), 3)
    assert (seeds, scored) == ([], [])


async def test_behind_a_step_that_is_not_whole_nothing_is_replayed(run: Run, tmp_path: Path) -> None:
    """Its weights may be others than those that sampled the steps behind it."""
    first = run.attempt(1)
    for step in (2, 3, 4):
        await do(first, step)
    file_of(tmp_path, step=3, attempt=1).unlink()
    second = run.attempt(2)
    assert [(await do(second, step))[0].num_replayed for step in (2, 3)] == [SAMPLES, 0]
    await generate_some(second, 4, 1)
    # and neither by the attempt after that one
    third = run.attempt(3)
    assert [(await do(third, step))[0].num_replayed for step in (2, 3, 4)] == [SAMPLES, SAMPLES, 1]


async def test_rewards_of_another_set_of_functions_are_not_used(run: Run, tmp_path: Path) -> None:
    await do(run.attempt(1), 3)
    other = Journal(
        tmp_path,
        job_uid="uid",
        attempt=2,
        group_size=GROUP,
        reward_names=["b"],
        layout="DDP over 1",
        sampling=1,
    )
    recorded, seeds, scored = await do(other, 3)
    other.close()
    assert (seeds, scored, recorded.num_replayed) == ([], [3], SAMPLES)
    found = read_step(tmp_path, step=3, attempt=2, job_uid="uid").scored
    assert [record.names for record in found] == [("b",), ("a",)], "the highest attempt comes first"


@pytest.mark.parametrize(("digest", "differs"), [(DIGEST, 0.0), ("ff" * 16, 1.0)])
async def test_weights_that_differ_from_those_before_are_a_warning_and_a_metric(
    run: Run, caplog: pytest.LogCaptureFixture, digest: str, differs: float
) -> None:
    first = run.attempt(1)
    recorded = (await do(first, 3))[0]
    assert DIFFERS not in recorded.trained(DIGEST)
    recorded = run.attempt(2).begin(3, requests(3))
    found = recorded.trained(digest)
    assert found == {REPLAYED: SAMPLES, CHECKSUM: float(int(digest[:8], 16)), DIFFERS: differs}
    assert ("are not those that it had before" in caplog.text) == bool(differs)


async def test_what_is_older_than_the_checkpoint_is_forgotten(run: Run, tmp_path: Path) -> None:
    journal = run.attempt(1)
    for step in range(4):
        await do(journal, step)
    journal.forget_before(None)
    journal.forget_before(2)
    journal.close()
    run._open.clear()
    assert sorted(step_folders(tmp_path)) == [2, 3]


async def test_what_lies_beyond_a_step_that_was_done_anew_is_never_replayed(run: Run) -> None:
    """The newest checkpoint is damaged, and the next attempt is killed on its way to where it was."""
    await do(run.attempt(1), 6)
    second = run.attempt(2)
    for step in (4, 5):
        await do(second, step)
    third = run.attempt(3)
    for step, expected in ((4, []), (5, []), (6, [request.seed for request in requests(6)])):
        _, seeds, _ = await do(third, step)
        assert seeds == expected


async def test_an_attempt_that_was_overtaken_removes_nothing_of_the_one_that_goes_on(run: Run) -> None:
    await do(run.attempt(2), 6)
    await do(run.attempt(1), 4)
    _, seeds, _ = await do(run.attempt(3), 6)
    assert seeds == []
