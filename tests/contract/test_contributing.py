"""The files that CONTRIBUTING.md and the pages of docs/ name exist, and what they name in them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = (
    "an option of the loss, with its field",
    "a weight-sync backend",
    "how weights look on the way, such as FP8",
    "an engine besides vLLM",
    "a decision of the fleet",
    "a field of the pods",
    "a built-in reward",
    "a built-in task",
    "a cause of a failure, or how a lost node counts",
    "a tracker",
    "a strategy",
    "`suspend`",
    "a metric of a step, which Prometheus gets too",
    "a column of the table of completions",
    "an asynchronous loop",
)
"""Changes that people will make, for which CONTRIBUTING.md has a row."""
MODULES = [
    str(path.relative_to(ROOT))
    for folder in ("crds", "operator", "runtime", "tests", "e2e", "bench", "examples")
    for path in (ROOT / folder).rglob("*.py")
]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<touched>.+) \|$", re.MULTILINE)
_PATH = re.compile(r"`([\w.]+/[\w./-]*)(?:::\w+)?`")
_NAME = re.compile(r"`([\w./-]+\.py)::(\w+)`")
_MODULE = re.compile(r"`([\w./-]+\.py)(?:::\w+)?`")


def rows() -> dict[str, str]:
    """Change -> the cell with the files it touches, of both tables."""
    found = {row["change"]: row["touched"] for row in _ROW.finditer((ROOT / "CONTRIBUTING.md").read_text())}
    return {change: touched for change, touched in found.items() if not change.startswith(("to ", "---"))}


def is_end_of_a_path(name: str) -> bool:
    """Whether a module's path ends with `name`, such as plan/causes.py."""
    return any(f"/{module}".endswith(f"/{name}") for module in MODULES)


def test_the_table_has_a_row_for_each_change_that_people_will_make() -> None:
    assert [change for change in CHANGES if change not in rows()] == []


@pytest.mark.parametrize("change", rows())
def test_every_row_names_files_or_folders_that_exist(change: str) -> None:
    named = _PATH.findall(rows()[change])
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_row_of_a_change_names_what_to_touch_in_a_file(change: str) -> None:
    assert _NAME.findall(rows()[change])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = _MODULE.findall(page.read_text())
    assert [name for name in named if not is_end_of_a_path(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_module_has_what_a_page_names_in_it(page: Path) -> None:
    named = _NAME.findall(page.read_text())
    assert [
        f"{path}::{name}" for path, name in named if name not in set(names_in((ROOT / path).read_text()))
    ] == []


def names_in(source: str) -> Iterator[str]:
    """What the statements of a module define; imported names are another module's."""
    for statement in ast.parse(source).body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_folder_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:crds|operator|runtime|tests|e2e|bench|examples)/[\w./-]*/)`", page.read_text())
    assert [name for name in named if not (ROOT / name).is_dir()] == []


def test_how_it_works_has_every_folder_of_the_runtime_and_of_the_operator() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    packages = (ROOT / "runtime" / "grpo_runtime", ROOT / "operator" / "grpo_operator")
    folders = [init.parent for package in packages for init in package.glob("*/__init__.py")]
    assert [folder.name for folder in folders if f"`{folder.relative_to(ROOT)}/`" not in page] == []
