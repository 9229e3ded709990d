"""Who may import whom: the contracts of .importlinter, and what import-linter cannot check."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = sorted((ROOT / "crds" / "grpo_api").rglob("*.py"))
ALGORITHM = sorted((ROOT / "runtime" / "grpo_runtime" / "algorithm").rglob("*.py"))
PURE = sorted(
    path
    for folder in ("plan", "children")
    for path in (ROOT / "operator" / "grpo_operator" / folder).rglob("*.py")
)
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported_packages(path: Path) -> Iterator[str]:
    """Top-level packages that the file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0, f"{short(path)} imports relatively"
            yield node.module.partition(".")[0]


def calls_of_clocks(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            yield f"{short(path)}:{node.lineno} calls {node.func.attr}()"


def test_every_contract_is_kept():
    # in a process of its own, because the linter disables all loggers
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("path", API, ids=short)
def test_the_api_imports_the_standard_library_and_pydantic_only(path: Path):
    allowed = {*sys.stdlib_module_names, "pydantic", "pydantic_core", "grpo_api"}
    assert set(imported_packages(path)) <= allowed


@pytest.mark.parametrize("path", ALGORITHM, ids=short)
def test_the_algorithm_imports_torch_and_the_standard_library_only(path: Path):
    assert set(imported_packages(path)) <= {*sys.stdlib_module_names, "torch", "grpo_runtime"}


@pytest.mark.parametrize("path", PURE, ids=short)
def test_pure_code_reads_no_clock(path: Path):
    assert list(calls_of_clocks(path)) == []
