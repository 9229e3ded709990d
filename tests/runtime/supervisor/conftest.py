"""Lets the tests of this folder import its helpers, and ends what forks their supervisors."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def no_supervisor_outlives_the_session() -> Iterator[None]:
    from scripted_supervisor import SUPERVISORS

    yield
    SUPERVISORS.close()
