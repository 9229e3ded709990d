"""Options of all tests."""

from collections.abc import Iterator
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
def pytest_collection() -> Iterator[None]:
    """Importing the tests imports nearly everything there is."""
    with lasting_imports():
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m engine` alone, import no file without such tests: importing them all takes many seconds."""
    marker = config.option.markexpr
    if marker not in SLOW or collection_path.suffix != ".py":
        return None
    return f"mark.{marker}" not in collection_path.read_text() or None


@pytest.fixture
def is_updating_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))
