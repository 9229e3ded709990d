"""Every script in bench/ has a --help that needs no slow import, and refuses what it cannot measure."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "bench").glob("*.py"), *(ROOT / "bench" / "gpu").glob("*.py")])
HEAVY = {"torch", "vllm", "transformers", "numpy", "trl", "grpo_runtime"}


def script(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def imported(importtime: str) -> set[str]:
    """Top-level packages in what `-X importtime` prints on standard error."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_help_explains_the_script_and_imports_nothing_heavy(path: Path) -> None:
    done = script(path, "--help")
    assert done.returncode == 0
    assert f"python {path.relative_to(ROOT)}" in done.stdout or "It needs " in done.stdout
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("bundles", "--pairs", "there must be at least one pair"),
        ("sparse", "--parameters", "--parameters 0: it must be above 0"),
        ("executors", "--rounds", "--rounds 0: it must be above 0"),
    ],
)
def test_nothing_to_measure_is_refused_before_anything_is_imported(
    name: str, option: str, sentence: str
) -> None:
    done = script(ROOT / "bench" / f"{name}.py", option, "0")
    assert (done.returncode, sentence in done.stderr) == (2, True)
    assert imported(done.stderr) & HEAVY == set()
