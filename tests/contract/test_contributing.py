"""The files that CONTRIBUTING.md and the pages of docs/ name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = (
    "an option of the loss, with its field",
    "a weight-sync backend",
    "a field of the pods",
    "a built-in reward",
    "how a lost node counts",
    "a tracker",
    "`suspend`",
    "a strategy",
    "a Prometheus metric",
    "an asynchronous loop",
)
"""The changes whose files CONTRIBUTING.md lists."""
MODULES = [
    str(path.relative_to(ROOT))
    for folder in ("crds", "operator", "runtime", "tests", "e2e", "bench", "examples")
    for path in (ROOT / folder).rglob("*.py")
]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<touched>.+) \|$", re.MULTILINE)
_PATH = re.compile(r"`([\w.]+/[\w./-]*)`")
_MODULE = re.compile(r"`([\w./-]+\.py)(?:::\w+)?`")


def rows() -> dict[str, str]:
    """Change -> the cell with the files it touches, of both tables."""
    found = {row["change"]: row["touched"] for row in _ROW.finditer((ROOT / "CONTRIBUTING.md").read_text())}
    return {change: touched for change, touched in found.items() if not change.startswith(("to ", "---"))}


def is_end_of_a_path(name: str) -> bool:
    """Whether a module's path ends with `name`, such as plan/causes.py."""
    return any(f"/{module}".endswith(f"/{name}") for module in MODULES)


def test_the_table_has_a_row_for_each_of_the_ten_changes() -> None:
    assert [change for change in CHANGES if change not in rows()] == []


@pytest.mark.parametrize("change", rows())
def test_every_row_names_files_or_folders_that_exist(change: str) -> None:
    named = _PATH.findall(rows()[change])
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = _MODULE.findall(page.read_text())
    assert [name for name in named if not is_end_of_a_path(name)] == []
