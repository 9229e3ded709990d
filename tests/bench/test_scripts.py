"""Every script in bench/ has a --help that needs no slow import, and `make bench` runs those that compare two
ways."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYNC = ROOT / "bench" / "sync.py"
ON_GPUS = sorted((ROOT / "bench" / "gpu").glob("*.py"))
AGAINST_TRL = ROOT / "bench" / "against_trl.py"
LOGPROBS = ROOT / "bench" / "logprobs.py"
CHECKPOINT = ROOT / "bench" / "checkpoint.py"
LORA = ROOT / "bench" / "lora.py"
LEARNING = ROOT / "bench" / "learning.py"
SPARSE = ROOT / "bench" / "sparse.py"
EXECUTORS = ROOT / "bench" / "executors.py"
SCRIPTS = sorted(
    set((ROOT / "bench").glob("*.py"))
    - {SYNC, AGAINST_TRL, LOGPROBS, CHECKPOINT, LORA, LEARNING, SPARSE, EXECUTORS}
)
"""Those that compare two ways."""
HEAVY = {"torch", "vllm", "transformers", "numpy", "grpo_runtime"}


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
    assert f"python bench/{path.name} --pairs" in done.stdout
    assert "The ratio is how many times as much" in done.stdout
    assert "grpo_bench" in imported(done.stderr)
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_sync_bench_explains_it_and_imports_nothing_heavy() -> None:
    done = script(SYNC, "--help")
    assert done.returncode == 0
    assert "python bench/sync.py --json" in done.stdout
    assert "ratio is total : floor" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_comparison_with_trl_explains_it_and_imports_nothing_heavy() -> None:
    done = script(AGAINST_TRL, "--help")
    assert done.returncode == 0
    assert "python bench/against_trl.py --json" in done.stdout
    assert "ratio is TRL : ours" in done.stdout
    assert imported(done.stderr) & {*HEAVY, "trl"} == set()


def test_help_of_the_logprobs_bench_explains_it_and_imports_nothing_heavy() -> None:
    done = script(LOGPROBS, "--help")
    assert done.returncode == 0
    assert "python bench/logprobs.py --json" in done.stdout
    assert "ratio is dense : chunked" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_checkpoint_bench_explains_it_and_imports_nothing_heavy() -> None:
    done = script(CHECKPOINT, "--help")
    assert done.returncode == 0
    assert "python bench/checkpoint.py --json" in done.stdout
    assert "ratio is synchronous : in a thread" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_bench_of_adapters_explains_it_and_imports_nothing_heavy() -> None:
    done = script(LORA, "--help")
    assert done.returncode == 0
    assert "python bench/lora.py --parameters" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_bench_of_executors_explains_it_and_imports_nothing_heavy() -> None:
    done = script(EXECUTORS, "--help")
    assert done.returncode == 0
    assert "python bench/executors.py --rounds" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_bench_of_learning_names_its_cases_and_imports_nothing_heavy() -> None:
    done = script(LEARNING, "--help")
    assert done.returncode == 0
    assert "python bench/learning.py --cases" in done.stdout
    assert "The cases: copy: dapo, " in done.stdout
    assert imported(done.stderr) & HEAVY == set()


def test_help_of_the_bench_of_sparse_syncs_explains_it_and_imports_nothing_heavy() -> None:
    done = script(SPARSE, "--help")
    assert done.returncode == 0
    assert "python bench/sparse.py --parameters" in done.stdout
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize("option", ["--parameters", "--learning-rate", "--steps"])
def test_the_bench_of_sparse_syncs_refuses_nothing_to_measure(option: str) -> None:
    done = script(SPARSE, option, "0")
    assert (done.returncode, f"{option} 0: it must be above 0" in done.stderr) == (2, True)
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize("option", ["--parameters", "--rank", "--times"])
def test_the_bench_of_adapters_refuses_nothing_to_measure(option: str) -> None:
    done = script(LORA, option, "0")
    assert (done.returncode, f"{option} 0: it must be above 0" in done.stderr) == (2, True)
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize("option", ["--rounds", "--steps", "--processes"])
def test_the_bench_of_executors_refuses_nothing_to_measure(option: str) -> None:
    done = script(EXECUTORS, option, "0")
    assert (done.returncode, f"{option} 0: it must be above 0" in done.stderr) == (2, True)
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: path.name)
def test_help_of_a_bench_on_gpus_explains_it_and_imports_nothing_heavy(path: Path) -> None:
    done = script(path, "--help")
    assert done.returncode == 0
    assert "--size" in done.stdout
    assert "It needs " in done.stdout
    assert imported(done.stderr) & HEAVY == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_wrong_options_are_reported_before_anything_is_measured(path: Path, tmp_path: Path) -> None:
    done = script(path, "--pairs", "0")
    assert (done.returncode, "there must be at least one pair" in done.stderr) == (2, True)
    done = script(path, "--json", str(tmp_path / "missing" / "results.jsonl"))
    assert (done.returncode, "there is no directory" in done.stderr) == (2, True)
    assert imported(done.stderr) & HEAVY == set()


def test_make_bench_runs_every_script_with_the_options_given() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "bench", "PAIRS=7", "JSON=results.jsonl"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(SCRIPTS) >= 2
    assert [path.name for path in SCRIPTS if f"bench/{path.name}" not in planned] == []
    assert "--pairs '7' --json 'results.jsonl'" in planned


@pytest.mark.parametrize("path", sorted((ROOT / "bench").rglob("*.py")), ids=lambda path: path.name)
def test_a_bench_imports_the_runtime_and_not_its_tests(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    packages = ("bench", "checkpoint", "gpu", "learning", "logprobs", "lora", "sync", "trl", "api", "runtime")
    ours = {f"grpo_{name}" for name in packages}
    of_trl = {"datasets", "trl"} if path.name == "trl_side.py" else set()
    assert found <= {
        *sys.stdlib_module_names,
        *ours,
        *of_trl,
        "aiohttp",
        "psutil",
        "safetensors",
        "torch",
        "transformers",
        "yaml",
    }
