"""Evaluations: when they are due, what they ask engines for, what they say; training does not notice them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from coordinated_run import PROMPTS, FakeRun, RecordingSaver
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.errors import KnownError, RewardServiceUnreachableError, UserError
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.collect import EngineSource, Take
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import AgentCalls, AgentTurn, Engines, GivenUp, Rollout
from grpo_runtime.rollouts.prompting import make_groups
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.distributed import Command
from grpo_runtime.trainer.evaluation import Evaluation

REWARDS = [[0.0], [1.0]] * 4
SCORING_SECONDS = 1000.0

Script = Sequence[float | KnownError | None]


class ScriptedEvaluations:
    """In evaluation number i every completion gets reward number i, or scoring raises it. Each takes
    SCORING_SECONDS on `clock`, and nothing else takes more than a second."""

    def __init__(self, rewards: Script) -> None:
        self._rewards = iter(rewards)
        self._of_steps: dict[int, float | KnownError | None] = {}
        self.now = 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def __call__(self, group: Group) -> float | None:
        if group.step not in self._of_steps:
            self.now += SCORING_SECONDS
            self._of_steps[group.step] = next(self._rewards)
        reward = self._of_steps[group.step]
        if isinstance(reward, KnownError):
            raise reward
        return reward


def job(*, report: dict[str, Any] | None = None, **options: Any) -> RunConfig:
    return run_config(
        report=report or {},
        dataset={
            "source": "file:///train.jsonl",
            "eval": {"everySteps": 2, "source": "file:///eval.jsonl", **options},
        },
        rewards=[{"name": "a", "function": "mine:score"}],
        algorithm={"steps": 5, "promptsPerStep": 2, "groupSize": 4, "seed": 7},
        checkpoint={"everySteps": 100},
    )


def evaluation_of(
    run: RunConfig,
    *,
    best: float | None = None,
    on_best: Callable[[int], None] = lambda step: None,
) -> Any:
    marked: list[tuple[int, float]] = []
    assert run.dataset.eval is not None
    made: Any = Evaluation(
        PROMPTS[3:],
        options=run.dataset.eval,
        run_config=run,
        tokenizer=char_tokenizer(max_length_tokens=64),
        best_reward=best,
        mark_best=lambda step, reward: (marked.append((step, reward)), on_best(step)),
    )
    made.marked = marked
    return made


def evaluated_run(folder: Path, *, rewards: Script, **options: Any) -> tuple[FakeRun, Any]:
    evaluation = evaluation_of(job())
    options = {"evaluations": ScriptedEvaluations(rewards), **options}
    return FakeRun(folder, job(), rewards=REWARDS, evaluation=evaluation, **options), evaluation


def test_it_is_due_every_few_steps_and_at_the_end() -> None:
    evaluation = evaluation_of(job())
    assert [step for step in range(1, 6) if evaluation.is_due(step)] == [2, 4, 5]


def test_every_evaluation_asks_for_the_same_completions_with_seeds_of_no_step() -> None:
    groups = evaluation_of(job(samples=3, temperature=0.5)).groups(4)
    assert [(group.step, group.number, group.prompt) for group in groups] == [
        (4, number, prompt) for number, prompt in enumerate(PROMPTS[3:])
    ]
    requests = [request for group in groups for request in group.requests]
    assert len(requests) == 2 * 3 and all(request.is_evaluation for request in requests)
    assert [request.seed - requests[0].seed for request in requests[:3]] == [0, 1, 2]
    assert len({request.seed for request in requests}) == 6
    run, tokenizer = job(), char_tokenizer(max_length_tokens=64)
    trained = [
        request.seed
        for step in range(3)
        for group in make_groups(PROMPTS, step=step, run_config=run, tokenizer=tokenizer)
        for request in group.requests
    ]
    assert not {request.seed for request in requests} & set(trained)


def test_it_is_greedy_unless_it_has_a_temperature() -> None:
    assert job().evaluation_sampling.temperature == 0.0
    assert job(temperature=0.5).evaluation_sampling.temperature == 0.5
    assert job().evaluation_sampling.max_tokens == job().sampling.max_tokens


def test_its_metrics_are_means_without_what_no_function_scored() -> None:
    evaluation = evaluation_of(job())
    rollouts = [Rollout((1,), (2,) * length, (0.0,) * length, (), length < 3, "e") for length in (1, 3)]

    def metrics(*values: float | None) -> Any:
        groups = evaluation.groups(2)
        for group, rollout, value in zip(groups, rollouts, values, strict=True):
            group.rollouts, group.columns = [rollout], (Column(values=[value]),)
        return evaluation.metrics(groups)

    assert metrics(0.5, None) == {
        "eval/reward": 0.5,
        "eval/rewards/a/mean": 0.5,
        "eval/completions/mean_length": 2.0,
        "eval/completions/clipped_ratio": 0.5,
    }
    nothing = metrics(None, None)
    assert "eval/reward" not in nothing and not evaluation.is_best(nothing, step=2)
    turn = AgentTurn(sequence=0, start=0, end=1, seconds=1.0, waited_seconds=0.0)
    rollouts = [replace(each, calls=AgentCalls(environment="game", turns=[turn])) for each in rollouts]
    assert metrics(0.25, None)["eval/env/game/reward"] == 0.25
    largest = metrics(3e38, 2e38)
    assert largest["eval/reward"] == largest["eval/rewards/a/mean"] == pytest.approx(2.5e38)


async def test_what_was_given_up_is_in_no_mean_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    evaluation = evaluation_of(job(samples=2, temperature=0.5))
    rollout = Rollout((1,), (2,), (0.0,), (), True, "e")

    async def measured(*rollouts: list[Rollout | GivenUp | None]) -> Any:
        groups = evaluation.groups(2)
        for group, found in zip(groups, rollouts, strict=True):
            group.rollouts = found
            if not group.is_left_out:
                group.columns = (Column(values=[0.5] * len(group.completions)),)

        async def scoring() -> None:
            """They are scored."""

        return await evaluation.measure(scoring(), groups)

    given_up = GivenUp("the agent raised")
    found = await measured([rollout, given_up], [given_up, given_up])
    assert (found["eval/reward"], found["eval/failed"], found["eval/given_up_episodes"]) == (0.5, 0.0, 3.0)
    assert "eval/given_up_episodes" not in await measured([rollout, rollout], [rollout, rollout])
    assert await measured([given_up] * 2, [given_up] * 2) == {
        "eval/failed": 1.0,
        "eval/given_up_episodes": 4.0,
    }
    assert "training continues: no completion could be made: the agent raised" in caplog.text


async def test_its_metrics_are_in_the_report_of_the_step_whose_weights_it_measured(tmp_path: Path) -> None:
    run, _ = evaluated_run(tmp_path, rewards=[0.25, 0.5, 0.75])
    assert await run.train()
    found = {step: report.get("eval/reward") for step, report in run.reporter.steps.items()}
    assert found == {1: None, 2: 0.25, 3: None, 4: 0.5, 5: 0.75}
    assert "time/evaluate_seconds" in run.reporter.steps[2]
    kept = {step: report["evaluated"] for step, report in run.reporter.steps.items()}
    assert [step for step, samples in kept.items() if samples] == [2, 4, 5]
    assert [(sample.reward, sample.advantage) for sample in kept[4]] == [(0.5, None)] * 2
    asked = [requests[0].is_evaluation for requests in run.engines.requests]
    assert asked == [False, False, True, False, False, True, False, True]
    assert run.engines.versions[2] == PolicyVersion(3, 2)


@dataclass(frozen=True)
class GivingUp:
    """Engines, but all samples of the first evaluation are given up, and of others those of the first
    prompt."""

    engines: Engines

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        for group in groups:
            if group.is_evaluation and (group.step == 2 or group.number == 0):
                for sample in group.missing:
                    take(group, sample, GivenUp("it raised"))
        await EngineSource(self.engines).sample(groups, take=take, stays_awake=stays_awake)


async def test_what_was_given_up_is_kept_also_of_an_evaluation_of_which_nothing_else_is(
    tmp_path: Path,
) -> None:
    run, _ = evaluated_run(tmp_path, rewards=[0.5, 0.75], source=GivingUp)
    assert await run.train()
    kept = {
        step: [(sample.reward, sample.given_up) for sample in report["evaluated"]]
        for step, report in run.reporter.steps.items()
        if report["evaluated"]
    }
    failed = (None, "it raised")
    assert kept == {2: [failed, failed], 4: [(0.5, ""), failed], 5: [(0.75, ""), failed]}


async def test_a_run_that_keeps_no_completions_keeps_none_of_evaluations(tmp_path: Path) -> None:
    run = FakeRun(
        tmp_path,
        job(report={"samplesEverySteps": 0}),
        rewards=REWARDS,
        evaluation=evaluation_of(job()),
        evaluations=ScriptedEvaluations([0.25, 0.5, 0.75]),
    )
    assert await run.train()
    assert not any(report["evaluated"] for report in run.reporter.steps.values())


async def test_its_seconds_are_no_part_of_those_of_a_step(tmp_path: Path) -> None:
    script = ScriptedEvaluations([0.25, 0.5, 0.75])
    run, _ = evaluated_run(tmp_path, rewards=(), evaluations=script, clock=script.clock)
    assert await run.train()
    assert all(report["step_time"] < SCORING_SECONDS / 2 for report in run.reporter.steps.values())
    evaluated = {step for step, report in run.reporter.steps.items() if "time/evaluate_seconds" in report}
    assert evaluated == {2, 4, 5}
    assert all(run.reporter.steps[step]["time/evaluate_seconds"] > SCORING_SECONDS for step in evaluated)


async def test_a_wait_for_rewards_is_told_with_what_the_scoring_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_runtime.rollouts.collect.unscored_message", lambda name, **_: name)
    run, _ = evaluated_run(tmp_path, rewards=[0.25, 0.5, 0.75])
    assert await run.train()
    told = [wait for wait in run.reporter.waits if wait]
    assert told == [
        *("step 0", "step 1", "evaluation 2", "step 2", "step 3", "evaluation 4", "step 4", "evaluation 5")
    ]


async def test_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    plain = FakeRun(tmp_path / "a", job(), rewards=REWARDS)
    measured, _ = evaluated_run(tmp_path / "b", rewards=[0.1, 0.2, 0.3])
    assert await plain.train() and await measured.train()
    trained = [requests for requests in measured.engines.requests if not requests[0].is_evaluation]
    assert trained == plain.engines.requests
    assert measured.saver.states[-1] == plain.saver.states[-1]
    for step, batch in plain.learner.batches.items():
        assert torch.equal(batch.advantages, measured.learner.batches[step].advantages)


@pytest.mark.parametrize(
    ("rewards", "saved", "marked"),
    [
        ([0.5, 0.6, 0.7], [2, 4, 5], [(2, 0.5), (4, 0.6), (5, 0.7)]),
        ([0.5, 0.4, 0.5], [2, 5], [(2, 0.5)]),
        ([None, 0.4, 0.1], [4, 5], [(4, 0.4)]),
    ],
)
async def test_the_checkpoint_of_the_best_evaluation_is_saved_and_named(
    tmp_path: Path, rewards: Sequence[float | None], saved: list[int], marked: list[tuple[int, float]]
) -> None:
    run, evaluation = evaluated_run(tmp_path, rewards=rewards)
    assert await run.train()
    assert [state.step for state in run.saver.states] == saved
    assert evaluation.marked == [(step, pytest.approx(reward)) for step, reward in marked]


async def test_a_checkpoint_is_named_the_best_once_it_is_committed(tmp_path: Path) -> None:
    saver = RecordingSaver(polls_until_committed=3)
    evaluation = evaluation_of(job(), on_best=lambda step: committed.append(saver.newest_step))
    committed: list[int | None] = []
    script = ScriptedEvaluations([0.5, 0.6, 0.7])
    run = FakeRun(tmp_path, job(), rewards=REWARDS, evaluation=evaluation, evaluations=script, saver=saver)
    assert await run.train()
    assert committed == [step for step, _ in evaluation.marked] == [2, 4, 5]


async def test_an_evaluation_that_cannot_be_scored_is_told_of_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unscored = [
        UserError("reward a failed on 8 of 8 completions"),
        RewardServiceUnreachableError("reward a: the service was out of reach"),
    ]
    run, evaluation = evaluated_run(tmp_path, rewards=[0.5, *unscored])
    assert await run.train()
    assert (run.saver.states[-1].step, run.saver.is_exported, run.reporter.checkpoint_step) == (5, True, 5)
    failed = {step: report.get("eval/failed") for step, report in run.reporter.steps.items()}
    assert failed == {1: None, 2: 0.0, 3: None, 4: 1.0, 5: 1.0}
    assert "eval/reward" not in run.reporter.steps[4]
    assert not run.reporter.steps[4]["evaluated"]
    assert evaluation.marked == [(2, 0.5)]
    said = [record.message for record in caplog.records if record.name == "grpo_runtime.trainer.evaluation"]
    assert said == [
        f"the evaluation after step {step} failed, training continues: {error}"
        for step, error in zip((4, 5), unscored, strict=True)
    ]


def test_what_an_earlier_attempt_reached_must_be_passed() -> None:
    evaluation = evaluation_of(job(), best=0.5)
    assert not evaluation.is_best({"eval/reward": 0.5}, step=2)
    assert evaluation.is_best({"eval/reward": 0.6}, step=4)


async def test_a_stop_request_during_an_evaluation_saves_the_step_before_it(tmp_path: Path) -> None:
    # waits: sync, generate and score of steps 1 and 2, then those of the evaluation
    run, _ = evaluated_run(tmp_path, rewards=[0.5], stops_at=8)
    assert not await run.train()
    assert [state.step for state in run.saver.states] == [2]
    assert run.ranks.commands[-1] is Command.STOP
    assert "eval/reward" not in run.reporter.steps[2]
    assert isinstance(run.saver.states[0], RunState)
