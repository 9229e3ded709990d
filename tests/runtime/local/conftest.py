"""Lets the tests of this folder import its helpers, and ends the commands that a failed test left."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS)]
sys.path += [str(_TESTS / "export")]


@pytest.fixture(autouse=True)
def no_command_outlives_its_test() -> Iterator[None]:
    from local_command import end_what_is_left

    yield
    end_what_is_left()


@pytest.fixture(scope="session", autouse=True)
def no_fork_of_a_command_outlives_the_session() -> Iterator[None]:
    from local_command import COMMANDS

    yield
    COMMANDS.close()
