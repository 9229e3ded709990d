"""Lets the tests of this folder import its helpers, and ends the commands that a failed test left."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


@pytest.fixture(autouse=True)
def no_command_outlives_its_test() -> Iterator[None]:
    from local_command import end_what_is_left

    yield
    end_what_is_left()
