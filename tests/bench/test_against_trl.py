"""The comparison with TRL: both sides are asked for the same batch, and one that did another is refused."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from grpo_api.problems import problems
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_bench.errors import BenchError
from grpo_bench.machine import Circumstances
from grpo_runtime.data.source import load_prompts
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_trl.batches import our_job, trl_arguments, write_prompts
from grpo_trl.cases import CASES, Case
from grpo_trl.environment import REQUIREMENTS
from grpo_trl.model_folder import write_model
from grpo_trl.report import CaseResult, Result, json_line
from grpo_trl.steps import Logged, Step, measured_steps

TINY = CASES["tiny"]
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@EVERY_CASE
def test_both_sides_are_asked_for_the_same_batch(case: Case, tmp_path: Path) -> None:
    dataset = tmp_path / "prompts.jsonl"
    written = our_job(case, model=tmp_path, dataset=dataset, processes=None)
    write_prompts(case, dataset)
    assert problems(written) == []
    ours, trl = parse_job(written).spec, trl_arguments(case)
    assert ours.algorithm.steps == trl["max_steps"] == 1 + case.num_steps
    assert ours.algorithm.prompts_per_step * ours.algorithm.group_size == case.num_completions
    assert trl["per_device_train_batch_size"] == case.num_completions
    assert ours.algorithm.group_size == trl["num_generations"]
    assert ours.sampling.max_tokens == trl["max_completion_length"] == case.completion_tokens
    assert ours.sampling.temperature == trl["temperature"]
    assert ours.algorithm.loss_type == trl["loss_type"]
    assert ours.algorithm.optimizer.learning_rate == trl["learning_rate"]
    assert ours.algorithm.optimizer.schedule == trl["lr_scheduler_type"]
    assert (ours.model.dtype, trl["bf16"]) == ("float32", False)
    # each step goes once through the dataset on both sides
    assert len(dataset.read_text().splitlines()) == ours.algorithm.prompts_per_step


@EVERY_CASE
def test_no_completion_can_end_early_and_every_prompt_has_its_length(case: Case, tmp_path: Path) -> None:
    num_parameters = write_model(dataclasses.replace(case, num_layers=1), tmp_path / "model")
    model = load_policy(tmp_path / "model", dtype="float32")
    tokenizer = load_tokenizer(tmp_path / "model")
    assert num_parameters == model.num_parameters()
    assert tokenizer.eos_token_id == model.get_output_embeddings().weight.shape[0]
    assert tokenizer.pad_token_id < tokenizer.eos_token_id
    write_prompts(case, tmp_path / "prompts.jsonl")
    job = our_job(case, model=tmp_path / "model", dataset=tmp_path / "prompts.jsonl", processes=None)
    run_config = resolve(parse_job(job), is_one_machine=True)
    prompts = load_prompts(run_config, volumes_dir=tmp_path, needs_answers=False)
    assert {len(tokenizer.encode(prompt.content)) for prompt in prompts} == {case.prompt_tokens}


def logged(case: Case) -> list[Logged]:
    """What a side logs that does what it was asked for: step n takes n seconds, 0.5 s of it to generate."""
    lengths = dict.fromkeys(
        ("completions/min_length", "completions/max_length"), float(case.completion_tokens)
    )
    return [
        Logged(
            time=100.0 + number * (number + 1) / 2,
            values={**lengths, "num_tokens": number * case.tokens_per_step, "time/generate_seconds": 0.5},
        )
        for number in range(1, 2 + case.num_steps)
    ]


def test_a_step_lasts_from_the_one_logged_before_and_the_first_is_left_out() -> None:
    steps = measured_steps(logged(TINY), case=TINY, side="ours")
    assert [step.seconds for step in steps] == [float(number) for number in range(2, 2 + TINY.num_steps)]
    assert steps[0].phases == {"generate": 0.5}
    assert steps[0].rest == 1.5


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "completions/min_length",
            3.0,
            "ours made completions of [3.0, 4.0] tokens in step 2 of tiny instead of 4",
        ),
        ("num_tokens", 1791.0, "ours counts 1791 tokens after step 2 of tiny instead of 1792"),
    ],
)
def test_a_side_that_did_another_batch_is_refused(name: str, value: float, sentence: str) -> None:
    steps = logged(TINY)
    steps[1] = Logged(steps[1].time, {**steps[1].values, name: value})
    with pytest.raises(BenchError, match=re.escape(sentence)):
        measured_steps(steps, case=TINY, side="ours")


DEFAULT = "ours, processes 1 (default)"
RESULT = Result(
    cases=[
        CaseResult(
            case=TINY,
            num_parameters=100_000,
            runs={
                "TRL": [[Step(3.0, {"generate": 1.0})], [Step(4.0, {"generate": 2.0})]],
                DEFAULT: [[Step(2.0, {"sync": 0.5})], [Step(1.0, {"sync": 0.25})]],
            },
        )
    ],
    load_average=0.25,
    circumstances=Circumstances(
        date="2026-01-02", commit="abc1234", num_cores=2, cpu="A Processor", versions={"torch": "2"}
    ),
)


def test_the_ratio_is_that_of_each_pair() -> None:
    assert RESULT.cases[0].ratios(DEFAULT) == [1.5, 4.0]
    assert json.loads(json_line(RESULT))["cases"][0]["ratios"] == {DEFAULT: [1.5, 4.0]}


def test_trl_is_of_the_release_that_is_compared_and_shares_our_torch_and_transformers() -> None:
    ours = (REQUIREMENTS.parents[1] / "tests" / "requirements.txt").read_text().splitlines()
    theirs = REQUIREMENTS.read_text().splitlines()
    assert "trl==1.16.0 \\" in theirs
    shared = [line for line in theirs if line.startswith(("torch==", "transformers=="))]
    assert len(shared) == 2
    assert set(shared) <= set(ours)
