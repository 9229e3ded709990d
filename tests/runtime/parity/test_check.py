"""The checker of parity files: it passes the published numbers, and nothing else."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check import check
from trl_case import ADVANTAGE_NAMES, LOSS_NAMES

SCRIPT = Path(__file__).with_name("check.py")
FIXTURES = Path(__file__).parents[1] / "algorithm" / "fixtures"
PUBLISHED = FIXTURES / "losses.json"
NAMED = {
    *("loss_type", "sapo_temperature_pos", "sapo_temperature_neg", "importance_sampling_level"),
    *("use_bias_correction_kl", "delta", "gradient_accumulation_steps", "importance_correction"),
    *("off_policy_mask_threshold", "top_entropy_quantile", "epsilon_low", "epsilon_high", "beta"),
    *("max_completion_length", "num_items_in_batch", "floor", "cap", "entropy_coef"),
}
"""Options of losses that cases may have."""


def run(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def changed(folder: Path, change: dict[str, Any], *, file: str = "losses.json") -> Path:
    """A published file of which the first case is changed."""
    content = json.loads((FIXTURES / file).read_text())
    name = next(iter(content["cases"]))
    case = copy.deepcopy(content["cases"][name])
    options = case["options"] | change.pop("options", {})
    content["cases"] = {name: case | change | {"options": options}}
    path = folder / file
    path.write_text(json.dumps(content))
    return path


def test_every_published_case_is_as_trl_has_it() -> None:
    files = [
        FIXTURES / name
        for name in ("losses.json", "losses_more.json", "advantages.json", "advantages_more.json")
    ]
    found = run(*files)
    num_cases = sum(len(json.loads(file.read_text())["cases"]) for file in files)
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert [line[:4] for line in lines[:-1]] == ["ok  "] * num_cases
    assert lines[-1] == f"{num_cases} of {num_cases} cases are as TRL has them"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("losses.json", {"loss": 0.5}, "loss in float64 is"),
        ("losses.json", {"metrics": {"entropy": 2.0}}, "entropy in float64 is"),
        ("losses.json", {"metrics": {"no_such_metric": 2.0}}, "no_such_metric in float64 is nan, not 2.0"),
        ("losses.json", {"options": {"temperature": 0.9}}, "unknown option temperature"),
        ("losses.json", {"options": {"loss_type": "reinforce"}}, "loss_type (reinforce) must be one of"),
        ("losses.json", {"options": {"epsilon_high": 0.001}}, "gradient ["),
        ("advantages.json", {"options": {"weights": [2.0]}}, "advantage 0 is"),
        ("advantages.json", {"options": {"center": True}}, "unknown option center"),
        ("advantages.json", {"options": {"scale_rewards": "none"}}, "advantage 0 is"),
    ],
)
def test_a_number_or_an_option_that_is_not_trls_is_a_miss(
    file: str, change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not check([changed(tmp_path, change, file=file)])
    told = capsys.readouterr().out
    assert told.startswith("MISS")
    assert words in told


def test_one_element_of_a_gradient_is_enough_to_fail(tmp_path: Path) -> None:
    gradient = json.loads(PUBLISHED.read_text())["cases"]["grpo"]["grad"]
    gradient[1][2] += 1e-8
    found = run(changed(tmp_path, {"grad": gradient}))
    assert found.returncode == 1
    assert "gradient [1, 2] in float64" in found.stdout


@pytest.mark.parametrize("num_steps", [1, 3])
def test_an_entropy_bonus_is_trls_mean_over_tokens_and_accumulation_steps(
    num_steps: int, tmp_path: Path
) -> None:
    content = json.loads(PUBLISHED.read_text())
    inputs, case = content["inputs"], content["cases"]["grpo"]
    counted = [
        entropy
        for entropies, mask in zip(inputs["entropy"], inputs["mask"], strict=True)
        for entropy, counts in zip(entropies, mask, strict=True)
        if counts
    ]
    options = case["options"] | {"entropy_coef": 0.25, "gradient_accumulation_steps": num_steps}
    bonus = 0.25 * sum(counted) / len(counted)
    content["cases"] = {
        "bonus": case
        | {
            "options": options,
            "loss": (case["loss"] - bonus) / num_steps,
            "grad": [[value / num_steps for value in row] for row in case["grad"]],
        }
    }
    path = tmp_path / "bonus.json"
    path.write_text(json.dumps(content))
    assert check([path])


def test_nothing_to_check_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text(json.dumps({"inputs": {}, "cases": {}}))
    assert not check([path])


def test_every_option_that_a_case_may_have_is_translated() -> None:
    assert NAMED <= LOSS_NAMES
    assert {"functions", "weights", "scale_rewards", "multi_objective_aggregation"} <= ADVANTAGE_NAMES
