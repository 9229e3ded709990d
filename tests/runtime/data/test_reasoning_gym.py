"""Problems of reasoning-gym: settings from a URL, the same problems on every machine, and errors."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from data_runs import dataset_run

from grpo_api.contract.exit_codes import exit_policy
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.reasoning_gym import make_entry, make_task, typed
from grpo_runtime.data.source import load_evaluated_prompts, load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.process.failure import describe_failure


def load(task: str, *, seed: int = 0) -> tuple[Prompt, ...]:
    run = dataset_run(f"reasoning-gym://{task}", builtin="reasoning_gym", seed=seed)
    return load_prompts(run, volumes_dir=Path("/nowhere"), needs_answers=False)


def test_a_task_makes_as_many_problems_as_asked_by_its_settings() -> None:
    prompts = load("chain_sum?size=5&min_terms=2&max_terms=2&min_digits=1&max_digits=1&allow_negation=true")
    assert len(prompts) == 5
    for prompt in prompts:
        assert isinstance(prompt.content, str)
        left, sign, right = re.search(r"(-?\d) ([+-]) (-?\d)", prompt.content).groups()
        total = int(left) + (1 if sign == "+" else -1) * int(right)
        assert total == int(prompt.columns["answer"])
        assert prompt.columns["metadata"]["num_terms"] == 2


def test_problems_follow_from_the_seed_alone_also_where_a_task_draws_from_sets() -> None:
    first, again, other = (load("word_ladder?size=3", seed=seed) for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_a_seed_in_the_url_overrides_that_of_the_run() -> None:
    assert load("leg_counting?size=3&seed=4", seed=1) == load("leg_counting?size=3", seed=4)


def evaluated(task: str, *, trained: str, seed: int = 0) -> tuple[Prompt, ...]:
    run = dataset_run(
        f"reasoning-gym://{trained}",
        builtin="reasoning_gym",
        seed=seed,
        eval={"everySteps": 5, "source": f"reasoning-gym://{task}"},
    )
    return load_evaluated_prompts(run, volumes_dir=Path("/nowhere"), needs_answers=False)


def test_an_evaluation_on_the_same_task_has_other_problems_than_training() -> None:
    task = "word_ladder?size=20"
    trained = {prompt.content for prompt in load(task)}
    found = evaluated(task, trained=task)
    assert len(found) == 20
    assert trained.isdisjoint(prompt.content for prompt in found)
    assert found == evaluated(task, trained=task) != evaluated(task, trained=task, seed=1)


def test_a_seed_in_the_url_decides_the_problems_of_an_evaluation() -> None:
    task = "leg_counting?seed=4&size=3"
    found = evaluated(task, trained="leg_counting", seed=1)
    assert [prompt.content for prompt in found] == [prompt.content for prompt in load(task)]
    assert {prompt.columns["task_url"] for prompt in found} == {f"reasoning-gym://{task}"}


def test_problems_follow_from_the_seed_alone_also_where_a_task_draws_from_pythons_own_generator() -> None:
    first, again = (load("list_functions?size=40", seed=4) for _ in range(2))
    assert first == again


def test_a_problem_made_alone_is_the_one_that_was_made_among_all() -> None:
    task = make_task("reasoning-gym://list_functions?size=40", seed=4)
    in_order = [make_entry(task, index) for index in range(40)]
    assert [make_entry(task, index) for index in reversed(range(40))] == in_order[::-1]


def test_an_empty_seed_is_refused_because_every_process_would_choose_its_own() -> None:
    with pytest.raises(UserError, match="seed= must be a whole number, or leave seed out"):
        make_task("reasoning-gym://chain_sum?seed=", seed=4)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("chain_sums", "reasoning-gym has no task chain_sums: did you mean chain_sum"),
        ("qqqqqq", "reasoning-gym has no task qqqqqq: there are ab, acre"),
        ("chain_sum?min_term=2", "the task has no setting min_term: did you mean min_terms"),
        ("chain_sum?min_terms=two", "min_terms=two must be a whole number"),
        ("chain_sum?allow_negation=maybe", "allow_negation=maybe must be one of true, false"),
        ("chain_sum?min_terms=5&max_terms=2", "reasoning-gym refuses these settings: "),
        ("zebra_puzzles", "the task zebra_puzzles needs the library pycosat, which this image lacks"),
    ],
)
def test_a_task_or_setting_that_does_not_exist_is_refused_with_those_that_do(
    task: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=r"^dataset\.source") as refusal:
        make_task(f"reasoning-gym://{task}", seed=0)
    assert sentence in str(refusal.value)


def test_a_refusal_reaches_the_trainer_from_the_process_that_makes_the_problems() -> None:
    with pytest.raises(UserError, match="has no setting sizes: did you mean size"):
        load("chain_sum?sizes=2")


def test_a_process_that_is_killed_while_it_makes_problems_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the process kills itself as its interpreter starts, after half a line
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nos.write(1, b'{\"prompt\": ')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ChildProcessError, match=r"\(reasoning-gym://ab\) was killed by SIGKILL") as caught:
        load("ab")
    assert exit_policy(describe_failure(caught.value).exit_code).is_retried


def test_stand_ins_for_missing_libraries_are_gone_after_the_import() -> None:
    make_task("reasoning-gym://chain_sum", seed=0)
    assert importlib.util.find_spec("matplotlib") is None
    assert "pycosat" not in sys.modules


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("0.5", float, 0.5),
        ("false", bool, False),
        ("a b", str, "a b"),
        ("", int | None, None),
        ("7", int | None, 7),
        ("1,2", tuple[int, int], (1, 2)),
        ("+,-", list[str], ["+", "-"]),
        ("easy", Literal["easy", "hard"], "easy"),
    ],
)
def test_a_setting_has_the_type_that_the_task_declares(text: str, hint: Any, value: Any) -> None:
    assert typed(text, hint) == value
