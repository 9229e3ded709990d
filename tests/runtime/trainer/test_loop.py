"""What rank 0 does in a run: requests, versions, batches, checkpoints and reports. No other process."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from coordinated_run import COMPLETION_TOKENS, PROMPT_TOKENS, PROMPTS, FakeRun, RecordingSaver
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.errors import UserError
from grpo_runtime.export.upload import ModelUploads
from grpo_runtime.rollouts.interface import FailedSyncs
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.distributed import Command

REWARDS = [[1.0], [0.0], [0.25], [0.75]]
TOKENS_OF_A_STEP = 4 * (PROMPT_TOKENS + COMPLETION_TOKENS)


def job(
    *,
    rewards: list[dict[str, Any]] | None = None,
    algorithm: dict[str, Any] | None = None,
    report: dict[str, Any] | None = None,
) -> RunConfig:
    """Five steps of two prompts with two completions each; a checkpoint after every second step."""
    named = [{"name": "a", "builtin": "exact_match"}]
    numbers = {"steps": 5, "promptsPerStep": 2, "groupSize": 2, "seed": 7}
    numbers |= algorithm or {}
    return run_config(rewards=rewards or named, algorithm=numbers, report=report)


async def test_every_completion_of_a_run_has_a_seed_of_its_own(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    assert await run.train()
    seeds = [request.seed for requests in run.engines.requests for request in requests]
    assert len(seeds) == len(set(seeds)) == 5 * 4


async def test_a_resumed_run_asks_for_what_the_uninterrupted_one_would(tmp_path: Path) -> None:
    whole, first, second = (FakeRun(tmp_path / name, job(), rewards=REWARDS) for name in "abc")
    assert await whole.train()
    assert await first.train()
    state = first.saver.states[0]
    assert state.sampler is not None
    second.sampler.load_state_dict(state.sampler)
    assert await second.train(state)
    assert second.engines.requests == whole.engines.requests[2:]
    prompts = [group.prompt for group in whole.scorer.scored]
    assert [group.prompt for group in second.scorer.scored] == prompts[4:]
    assert second.saver.states[-1] == whole.saver.states[-1]


async def test_a_run_that_resumes_from_its_last_step_only_writes_the_model_and_is_done(
    tmp_path: Path,
) -> None:
    first, second = (FakeRun(tmp_path / name, job(), rewards=REWARDS) for name in "ab")
    assert await first.train()
    second.saver.newest_step = 5
    assert await second.train(first.saver.states[-1])
    assert (second.engines.versions, second.engines.requests, second.saver.states) == ([], [], [])
    assert second.saver.is_exported and second.reporter.checkpoint_step == 5


async def test_the_last_checkpoint_is_reported_once_the_model_is_written_too(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(algorithm={"steps": 4}), rewards=REWARDS, is_full=True)
    with pytest.raises(OSError, match="no space left"):
        await run.train()
    assert (run.saver.newest_step, run.reporter.checkpoint_step) == (4, 2)


async def test_while_the_model_is_written_the_bytes_of_it_are_reported(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(algorithm={"steps": 1}), rewards=REWARDS)
    assert await run.train()
    message = "the trained model is being written"
    assert run.reporter.moved[-2:] == [(message, 0), (message, 100)]


async def test_the_place_in_the_data_that_is_saved_is_where_the_next_step_begins(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    await run.train()
    for state in run.saver.states:
        assert state.sampler is not None
        resumed = PromptSampler(PROMPTS, seed=7, is_shuffled=True)
        resumed.load_state_dict(state.sampler)
        expected = PromptSampler(PROMPTS, seed=7, is_shuffled=True)
        expected.next_prompts(2 * state.step)
        assert resumed.next_prompts(5) == expected.next_prompts(5)


async def test_engines_get_the_policy_of_every_step_before_they_sample_it(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    await run.train()
    assert run.engines.versions == [PolicyVersion(3, step) for step in range(5)]
    assert [report["policy_version"] for report in run.reporter.steps.values()] == [
        f"3.{n}" for n in range(1, 6)
    ]


@pytest.mark.parametrize("is_verified", [True, False])
async def test_engines_are_probed_exactly_when_the_job_asks_for_it(tmp_path: Path, is_verified: bool) -> None:
    run = FakeRun(tmp_path, run_config(weightSync={"verify": is_verified}), rewards=REWARDS * 4)
    await run.train()
    assert [probe is not None for probe in run.engines.probes] == [is_verified] * 5


async def test_checkpoints_are_due_every_few_steps_and_at_the_end(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    assert await run.train()
    assert [state.step for state in run.saver.states] == [2, 4, 5]
    assert run.reporter.checkpoint_step == 5
    assert run.saver.is_exported and run.ranks.commands[-2:] == [Command.EXPORT, Command.DONE]


@pytest.mark.parametrize("wait", [1, 2, 3])
async def test_a_stop_ends_the_run_at_the_last_step_boundary_which_is_saved(
    tmp_path: Path, wait: int
) -> None:
    # sync, generate and score are three waits of every step
    run = FakeRun(tmp_path, job(), rewards=REWARDS, stops_at=3 * 3 + wait)
    assert not await run.train()
    assert [state.step for state in run.saver.states] == [2, 3]
    assert (run.reporter.checkpoint_step, set(run.learner.batches)) == (3, {0, 1, 2})
    assert not run.saver.is_exported and run.ranks.commands[-2:] == [Command.SAVE, Command.STOP]
    assert run.saver.states[-1].num_tokens == 3 * TOKENS_OF_A_STEP


async def test_a_stop_waits_for_the_checkpoint_that_is_in_flight_and_saves_no_step_twice(
    tmp_path: Path,
) -> None:
    # in the sync of the third step, right after the second was given to the thread
    saver = RecordingSaver(polls_until_committed=100)
    run = FakeRun(tmp_path, job(), rewards=REWARDS, stops_at=3 * 2 + 1, saver=saver)
    assert not await run.train()
    assert ([state.step for state in saver.states], saver.waits) == ([2], [2])
    assert run.reporter.checkpoint_step == saver.newest_step == 2
    assert run.ranks.commands[-1] is Command.STOP


async def test_a_checkpoint_is_reported_when_it_is_committed_and_not_when_it_is_begun(
    tmp_path: Path,
) -> None:
    saver = RecordingSaver(polls_until_committed=2)
    run = FakeRun(tmp_path, job(), rewards=REWARDS, saver=saver)
    reported: list[tuple[int, int | None]] = []
    finished_step = run.reporter.finished_step

    def with_checkpoint(values: Mapping[str, float], *, step: int, **rest: Any) -> None:
        reported.append((step, run.reporter.checkpoint_step))
        finished_step(values, step=step, **rest)

    run.reporter.finished_step = with_checkpoint  # type: ignore[method-assign]
    assert await run.train()
    # the second step's is committed in the third step, that of the fourth in the fifth
    assert reported == [(1, None), (2, None), (3, 2), (4, 2), (5, 4)]
    assert (run.reporter.checkpoint_step, run.reporter.checkpoint_seconds) == (5, 0.5)
    assert "checkpoint/seconds" in run.reporter.steps[5]


async def test_a_save_waits_for_the_one_before(tmp_path: Path) -> None:
    saver = RecordingSaver(polls_until_committed=1000)
    run = FakeRun(tmp_path, job(), rewards=REWARDS, saver=saver)
    assert await run.train()
    assert [state.step for state in saver.states] == saver.waits == [2, 4, 5]


@pytest.mark.parametrize(("polls", "num_trained"), [(0, 2), (4, 3), (1000, 4)])
async def test_what_keeps_a_checkpoint_from_being_written_ends_the_run_at_a_step_boundary(
    tmp_path: Path, polls: int, num_trained: int
) -> None:
    saver = RecordingSaver(polls_until_committed=polls, fails_at=2)
    run = FakeRun(tmp_path, job(), rewards=REWARDS, saver=saver)
    with pytest.raises(OSError, match="the volume went away"):
        await run.train()
    assert len(run.learner.batches) == num_trained
    assert run.reporter.checkpoint_step is None


async def test_the_error_of_the_last_save_ends_the_run_before_the_model_is_written(tmp_path: Path) -> None:
    saver = RecordingSaver(polls_until_committed=1000, fails_at=5)
    run = FakeRun(tmp_path, job(), rewards=REWARDS, saver=saver)
    with pytest.raises(OSError, match="the volume went away"):
        await run.train()
    assert run.reporter.checkpoint_step == 4
    assert not saver.is_exported and Command.EXPORT not in run.ranks.commands


async def test_tokens_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    await run.train(RunState(step=2, num_tokens=1000))
    tokens = [report["num_tokens"] for report in run.reporter.steps.values()]
    assert tokens == [1000 + number * TOKENS_OF_A_STEP for number in (1, 2, 3)]


async def advantages(folder: Path, run: RunConfig, rewards: list[list[float]]) -> torch.Tensor:
    trained = FakeRun(folder, run, rewards=rewards)
    await trained.train()
    return trained.learner.batches[0].advantages


async def test_rewards_count_by_their_weights(tmp_path: Path) -> None:
    two = [
        {"name": "a", "builtin": "exact_match", "weight": 2.0},
        {"name": "b", "builtin": "char_accuracy", "weight": -0.5},
    ]
    run = job(rewards=two, algorithm={"scaleRewards": "none"})
    found = await advantages(tmp_path, run, [[1.0, 0.0], [0.0, 1.0], [0.5, 1.0], [0.5, 0.0]])
    # sums of 2 and -0.5, then of 0.5 and 1, less the mean of their group
    assert found.tolist() == pytest.approx([1.25, -1.25, -0.25, 0.25])


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none", [0.5, -0.5, -0.25, 0.25]),
        ("group", [0.7071, -0.7071, -0.7071, 0.7071]),
        ("batch", [1.0954, -1.0954, -0.5477, 0.5477]),
    ],
)
async def test_advantages_are_scaled_as_the_job_says(
    tmp_path: Path, scale: str, expected: list[float]
) -> None:
    found = await advantages(tmp_path, job(algorithm={"scaleRewards": scale}), REWARDS)
    assert found.tolist() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [("group_mean", [0.5, -0.5, -0.25, 0.25]), ("leave_one_out", [1.0, -1.0, -0.5, 0.5])],
)
async def test_a_completion_is_compared_with_what_the_job_says(
    tmp_path: Path, baseline: str, expected: list[float]
) -> None:
    algorithm = {"scaleRewards": "none", "baseline": baseline}
    found = await advantages(tmp_path, job(algorithm=algorithm), REWARDS)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # weighted sums of 2 and 1, 3 and 0
        ("sum_then_normalize", [0.7071, -0.7071, 0.7071, -0.7071]),
        # in units of 0.7071: 2 - 1 and -2 + 1 in the first group, 2 + 1 and -2 - 1 in the other
        ("normalize_then_sum", [0.3873, -0.3873, 1.1619, -1.1619]),
    ],
)
async def test_rewards_become_one_advantage_as_the_job_says(
    tmp_path: Path, aggregation: str, expected: list[float]
) -> None:
    two = [
        {"name": "a", "builtin": "exact_match", "weight": 2.0},
        {"name": "b", "builtin": "char_accuracy"},
    ]
    run = job(rewards=two, algorithm={"aggregation": aggregation})
    found = await advantages(tmp_path, run, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert found.tolist() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("masks", "num_tokens"), [(True, [3, 0, 3, 0]), (False, [3, 3, 3, 3]), (None, [3, 3, 3, 3])]
)
async def test_completions_that_were_cut_are_left_out_of_the_loss_where_the_job_says_so(
    tmp_path: Path, masks: bool | None, num_tokens: list[int]
) -> None:
    run = FakeRun(tmp_path, job(algorithm={"maskTruncated": masks}), rewards=REWARDS, cut=(1, 3))
    await run.train()
    batch = run.learner.batches[0]
    assert batch.loss_mask.sum(1).tolist() == num_tokens
    # they stay in the advantages of their groups
    assert batch.advantages.tolist() == pytest.approx([0.7071, -0.7071, -0.7071, 0.7071], rel=1e-3)


async def test_a_metric_of_the_users_that_is_no_number_is_left_out_of_the_report(tmp_path: Path) -> None:
    metrics = {"mine": 3.0, "broken": math.nan, "endless": math.inf}
    run = FakeRun(tmp_path, job(), rewards=REWARDS, metrics=metrics)
    await run.train()
    assert run.reporter.steps[1]["mine"] == 3.0
    assert not {"broken", "endless"} & set(run.reporter.steps[1])


async def test_a_completion_that_no_function_scored_teaches_nothing(tmp_path: Path) -> None:
    found = await advantages(tmp_path, job(), [[1.0], [math.nan], [0.0], [1.0]])
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] < 0 < found[3]


@pytest.mark.parametrize(
    ("rewards", "grad_norm", "lack"),
    [
        ([[math.nan]] * 4, 0.0, "no_reward"),
        # a penalty or a bonus has a gradient without any reward
        ([[math.nan]] * 4, 1.0, "no_reward"),
        ([[0.1], [0.1], [0.7], [0.7]], 1.0, "equal_rewards"),
        ([[0.1], [math.nan], [math.nan], [math.nan]], 0.0, "equal_rewards"),
        (REWARDS, 0.0, "zero_gradient"),
        ([[0.1], [0.1], [0.7], [0.8]], 1.0, None),
        (REWARDS, math.nan, None),
    ],
)
async def test_steps_in_a_row_that_teach_nothing_are_counted_by_what_they_lack(
    tmp_path: Path, rewards: list[list[float]], grad_norm: float, lack: str | None
) -> None:
    run = FakeRun(tmp_path, job(), rewards=rewards)
    run.learner.grad_norm = grad_norm
    # an attempt continues where its checkpoint stood
    await run.train(RunState(step=2, without_signal={} if lack is None else {lack: 2}))
    name = "steps_without_signal/"
    counted = [
        {key: value for key, value in report.items() if key.startswith(name)}
        for report in run.reporter.steps.values()
    ]
    assert counted == [{} if lack is None else {name + lack: num} for num in (3.0, 4.0, 5.0)]
    assert run.saver.states[-1].without_signal == ({} if lack is None else {lack: 5})


async def test_the_completions_of_some_steps_are_reported_with_the_advantages_they_are_trained_on(
    tmp_path: Path,
) -> None:
    rewards = [[1.0], [0.0], [math.nan], [0.5]]
    run = FakeRun(tmp_path, job(report={"samplesEverySteps": 2}), rewards=rewards)
    assert await run.train()
    kept = {step: report["samples"] for step, report in run.reporter.steps.items() if report["samples"]}
    assert kept.keys() == {2, 4, 5}
    prompts = [group.prompt.content for group in run.scorer.scored[2:4] for _ in range(2)]
    assert [sample.prompt for sample in kept[2]] == prompts
    advantages = run.learner.batches[1].advantages.tolist()
    assert advantages == pytest.approx([0.7071, -0.7071, 0.0, 0.0], rel=1e-3)
    assert [sample.advantage for sample in kept[2]] == advantages
    assert {sample.policy_versions for sample in kept[2]} == {"3.1"}


async def test_before_each_training_it_is_reported_that_engines_are_current(tmp_path: Path) -> None:
    """Training reports nothing: what was said before it, in a sync without engines, would last as long."""
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    run.ranks.is_slow = False
    assert await run.train()
    assert run.reporter.num_current == [1] * 5


async def test_engines_that_get_no_weights_are_reported_with_the_cause(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, job(), rewards=REWARDS)
    run.ranks.is_slow = False
    why = "init: not all members have met"
    run.engines.failed = {"b": FailedSyncs(num=2, version=PolicyVersion(3, 1), why=why)}
    assert await run.train()
    assert set(run.reporter.notes) == {
        f"engine b has failed 2 weight syncs, the last one of weights 3.1: {why}"
    }


class StandInUploads(ModelUploads):
    """One destination, which takes the model or raises."""

    async def run(self) -> None:
        self.state.sent(7)
        if self.folder.name == "refused":
            raise UserError("the store refuses access")


async def test_the_last_checkpoint_is_reported_once_the_model_is_uploaded(tmp_path: Path) -> None:
    done = StandInUploads([Mock()], tmp_path)
    run = FakeRun(tmp_path / "a", job(algorithm={"steps": 4}), rewards=REWARDS, uploads=done)
    assert await run.train()
    assert (run.reporter.checkpoint_step, run.ranks.commands[-1]) == (4, Command.DONE)
    refused = StandInUploads([Mock()], tmp_path / "refused")
    run = FakeRun(tmp_path / "b", job(algorithm={"steps": 4}), rewards=REWARDS, uploads=refused)
    with pytest.raises(UserError, match="refuses access"):
        await run.train()
    assert run.saver.is_exported
    assert (run.saver.newest_step, run.reporter.checkpoint_step) == (4, 2)


async def test_a_stop_during_the_upload_ends_the_attempt_at_its_last_step(tmp_path: Path) -> None:
    # three waits for each step, and then that for the upload
    uploads = StandInUploads([Mock()], tmp_path)
    run = FakeRun(
        tmp_path / "a", job(algorithm={"steps": 4}), rewards=REWARDS, uploads=uploads, stops_at=3 * 4 + 1
    )
    assert not await run.train()
    assert run.ranks.commands[-2:] == [Command.EXPORT, Command.STOP]
    assert run.saver.newest_step == 4
