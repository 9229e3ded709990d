"""Options of all tests."""

from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path

import pytest

from grpo_runtime.lasting_imports import lasting_imports

SLOW = ("engine", "apiserver")
"""Markers that stand in the files of their tests and nowhere else."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what is made now as what should be made; read the diff",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Importing the tests imports nearly everything there is."""
    with lasting_imports():
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m engine` alone, import no file without such tests: importing them all takes many seconds."""
    marker = config.option.markexpr
    if marker not in SLOW or collection_path.suffix != ".py":
        return None
    return not stands_in(collection_path, marker) or None


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Hold every file to it, or a test would vanish from `-m engine` without a word."""
    for item in items:
        for marker in SLOW:
            if item.get_closest_marker(marker) and not stands_in(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker}: say so in its file")


@cache
def stands_in(path: Path, marker: str) -> bool:
    """Whether the file says the marker."""
    return f"mark.{marker}" in path.read_text()


@pytest.fixture
def is_updating_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))
