"""The values of the built-in rewards, and which answers they refuse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pod_builder import run_config
from reward_matrix import put_together

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.reasoning_gym import read_reasoning_gym
from grpo_runtime.data.source import load_evaluated_prompts, load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.builtin import (
    BUILTIN_REWARDS,
    Builtin,
    exact_match,
    final_answer,
    make_builtin,
    overlong_punishment,
    r1_format,
    refused_answers,
)
from grpo_runtime.rewards.kinds import reward_functions
from grpo_runtime.rewards.math_answers import math_verify
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    BuiltinOptions,
    RewardFunction,
    RewardRequest,
    Unscorable,
)

GSM8K_ANSWER = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = 72 altogether.\n#### 1,072"


def call(name: str, options: BuiltinOptions, **arguments: Any) -> list[Any]:
    prefills = [""] * len(arguments["completions"])
    return make_builtin(name, options=options)(**{"prefills": prefills, **arguments})


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("The answer is 42.", "42", 1.0),
        ("so it is \\boxed{42}", "#### 42", 1.0),
        ("She has $1{,}072 in the end, \\boxed{1072}", GSM8K_ANSWER, 1.0),
        ("<think>first 5, then 72</think><answer>1072</answer>", GSM8K_ANSWER, 1.0),
        ("<think>it is \\boxed{1072}</think><answer>72</answer>", GSM8K_ANSWER, 0.0),
        ("The answer is 24.", GSM8K_ANSWER, 0.0),
        ("$\\frac{1}{2}$", "0.5", 1.0),
        ("It is 1/2", "\\frac{1}{2}", 1.0),
        ("\\boxed{(x+1)^2}", "$x^2+2x+1$", 1.0),
        ("\\boxed{2}", "\\frac{1}{2}", 0.0),
        ("-3", "-3", 1.0),
        ("$x$", "x", 1.0),
        ("12", "12 apples", 1.0),
        ("3/4", "3/4", 1.0),
        ("50%", "50%", 1.0),
        ("$(1, 2)$", "(1, 2)", 1.0),
        ("I do not know", "42", 0.0),
        ("", "42", 0.0),
    ],
)
def test_mathematics_is_compared_by_value(completion: str, answer: str, expected: float) -> None:
    assert math_verify(completion, answer) == expected


def test_an_answer_without_any_expression_makes_the_sample_fail_with_the_reason() -> None:
    outcome = math_verify("42", "nobody knows\n#### ")
    assert isinstance(outcome, Unscorable)
    assert "the answer (nobody knows\n#### ) holds no expression" in outcome.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("\n<think>a\nb</think>\n\n<answer>\n4\n</answer>\n", 1.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think>b", 0.0),
        ("<think>a</think><answer>b</answer> and more", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_format_is_thinking_then_an_answer_and_nothing_else(text: str, expected: float) -> None:
    assert r1_format(text) == expected


@pytest.mark.parametrize(
    ("prefill", "text", "expected"),
    [
        ("<think>", "a</think><answer>b</answer>", 1.0),
        ("<think>\n\n</think>\n\n", "<answer>b</answer>", 1.0),
        ("Sure. <think>", "a</think><answer>b</answer>", 1.0),
        ("<think>", "<think>a</think><answer>b</answer>", 0.0),
        ("Sure.", "<think>a</think><answer>b</answer>", 1.0),
        ("", "a</think><answer>b</answer>", 0.0),
    ],
)
def test_what_the_prompt_has_opened_counts_as_written(prefill: str, text: str, expected: float) -> None:
    assert call("format", BuiltinOptions(), completions=[text], prefills=[prefill]) == [expected]


def test_an_answer_that_the_prompt_has_begun_is_read_as_a_whole() -> None:
    def scores(name: str, prefill: str, completion: str) -> list[Any]:
        return call(name, BuiltinOptions(), completions=[completion], prefills=[prefill], answer=["42"])

    assert scores("math_verify", "It is \\boxed{", "42}.") == [1.0]
    assert scores("math_verify", "<answer>", "42</answer>") == [1.0]
    assert scores("math_verify", "<think>", "41 or</think>42") == [1.0]
    assert scores("exact_match", "It is ", "42") == [1.0]


def test_of_several_accepted_answers_the_best_counts() -> None:
    def scores(name: str, completion: str, *answers: Any) -> list[Any]:
        return call(name, BuiltinOptions(), completions=[completion] * len(answers), answer=list(answers))

    assert scores("exact_match", "b b", ["bb", "b b"], ["bb"], "b b", None) == [1.0, 0.0, 1.0, None]
    assert scores("exact_match", "3", 3.0, 3, "3.0") == [1.0, 1.0, 0.0]
    assert scores("char_accuracy", "ab", ["xx", "ax"]) == [0.5]
    assert scores("math_verify", "\\boxed{0.5}", ["3", "1/2"], ["east", "1/2"]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (120, -1.0)]
)
def test_the_length_reward_is_equation_13_of_dapo(num_tokens: int, expected: float) -> None:
    assert overlong_punishment(num_tokens, max_tokens=100, overlong_tokens=20) == pytest.approx(expected)


def test_the_length_reward_counts_tokens_and_not_characters() -> None:
    options = BuiltinOptions(max_tokens=4, overlong_tokens=2)
    rewards = call("length", options, completions=["xxxxxxxxx", "y"], completion_ids=[[1], [1, 2, 3]])
    assert rewards == [0.0, -0.5]


def test_a_pattern_is_searched_in_the_completion() -> None:
    options = BuiltinOptions(pattern=r"\\boxed\{\d+\}")
    assert call("regex", options, completions=["so \\boxed{42}.", "42"]) == [1.0, 0.0]


def test_an_invalid_pattern_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"pattern \(\(\) is no regular expression: missing \)"):
        call("regex", BuiltinOptions(pattern="("), completions=[""])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 42 ", "42"),
        ("<think>7</think> 42", "42"),
        ("<answer>1</answer> no, <answer> 42 </answer>", "42"),
        ("<think>7</think><answer>42", "42"),
    ],
)
def test_the_final_answer_is_inside_its_tags_or_after_the_thinking(text: str, expected: str) -> None:
    assert final_answer(text) == expected


def request(rows: list[dict[str, Any]], completions: list[str]) -> RewardRequest:
    return RewardRequest(
        prompts=[row["prompt"] for row in rows],
        completions=completions,
        completion_ids=[[1, 2, 3] for _ in rows],
        columns={name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
        step=0,
        total_steps=1,
    )


# word_ladder and isomorphic_strings draw from sets, whose order differs between processes
@pytest.mark.parametrize("task", ["leg_counting", "word_ladder?size=6", "isomorphic_strings?size=4"])
async def test_a_reasoning_gym_task_is_scored_in_the_worker_by_its_own_scorer(task: str) -> None:
    rows = read_reasoning_gym(f"reasoning-gym://{task}", seed=7)[:4]
    function = RewardFunction(
        name="solved",
        source=BuiltinFunction(
            name="reasoning_gym", options=BuiltinOptions(dataset_source=f"reasoning-gym://{task}", seed=7)
        ),
    )
    right = [f"<think>hm</think><answer>{row['answer']}</answer>" for row in rows]
    async with RewardPool((function,)) as pool:
        solved = put_together(pool, [await pool.submit(request(rows, right))], step=0)
        unsolved = put_together(
            pool, [await pool.submit(request(rows, ["<answer>no idea</answer>"] * 4))], step=0
        )
    assert [value for (value,) in solved.values] == [1.0] * 4
    assert max(value or 0.0 for (value,) in unsolved.values) < 0.5
    assert (solved.failures, unsolved.failures) == ((), ())


async def test_the_problems_of_an_evaluation_are_scored_by_the_task_that_made_them() -> None:
    trained, evaluated = "reasoning-gym://leg_counting?size=4", "reasoning-gym://gcd?size=4"
    run = run_config(
        dataset={"source": trained, "eval": {"everySteps": 1, "source": evaluated}},
        rewards=[{"name": "solved", "builtin": "reasoning_gym"}],
    )
    volumes_dir = Path("/nowhere")
    steps = load_prompts(run, volumes_dir=volumes_dir, needs_answers=False)
    prompts = load_evaluated_prompts(run, volumes_dir=volumes_dir, needs_answers=False)
    (function,) = reward_functions(run, volumes_dir=volumes_dir)

    async def scores(pool: RewardPool, problems: tuple[Prompt, ...]) -> list[float | None]:
        rows = [{"prompt": problem.content, **problem.columns} for problem in problems]
        right = [f"<answer>{row['answer']}</answer>" for row in rows]
        matrix = put_together(pool, [await pool.submit(request(rows, right))], step=0)
        assert matrix.failures == ()
        return [value for (value,) in matrix.values]

    async with RewardPool((function,)) as pool:
        # in turns, as a run does it
        for problems in (steps, prompts, steps):
            assert await scores(pool, problems) == [1.0] * 4
        # the problem of training with the same number has another answer
        wrong = tuple(
            replace(one, columns={**one.columns, "answer": other.columns["answer"]})
            for one, other in zip(prompts, steps, strict=True)
        )
        assert max(value or 0.0 for value in await scores(pool, wrong)) < 0.5


async def test_math_verify_runs_in_the_worker_and_an_unreadable_answer_costs_only_its_sample() -> None:
    rows = [{"prompt": "?", "answer": answer} for answer in (GSM8K_ANSWER, "####", "7")]
    function = RewardFunction(name="right", source=BuiltinFunction(name="math_verify"), max_failure_share=0.5)
    async with RewardPool((function,)) as pool:
        matrix = put_together(pool, [await pool.submit(request(rows, ["1072", "1072", "8"]))], step=0)
    assert matrix.values == ((1.0,), (None,), (0.0,))
    assert matrix.failures[0].num_samples == 1
    assert "holds no expression" in matrix.failures[0].reason


def test_a_row_that_names_its_check_refuses_answers_by_the_name_of_the_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Builtin(make=lambda: exact_match, accepts=str.isdigit)
    monkeypatch.setitem(BUILTIN_REWARDS, "digits", row)
    assert refused_answers(["1", "one", "2"], builtins=[None, "digits"]) == {"one": "digits"}


def test_rewards_without_a_check_refuse_no_answer() -> None:
    assert refused_answers(["", "}"], builtins=["exact_match", "length", None]) == {}


def test_an_answer_that_is_there_many_times_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    row = Builtin(make=lambda: exact_match, accepts=lambda answer: bool(checked.append(answer)))
    monkeypatch.setitem(BUILTIN_REWARDS, "never", row)
    assert refused_answers(["1", "1", "2", "1"], builtins=["never"]) == {"1": "never", "2": "never"}
    assert sorted(checked) == ["1", "2"]


def test_what_an_agent_returned_is_its_reward() -> None:
    returned = [1.0, None, -2.5]
    options = BuiltinOptions()
    assert make_builtin("environment", options=options)(returned=returned, completions=["a"] * 3) == returned
