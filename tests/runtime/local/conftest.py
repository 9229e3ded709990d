"""Lets the tests of this folder import its helpers, and ends the commands that a failed test left."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_command_outlives_its_test() -> Iterator[None]:
    from local_command import end_what_is_left

    yield
    end_what_is_left()
