"""Makes the helpers of the tests importable; the two ends of every backend, and of one that is only here."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS)]
sys.path += [str(_TESTS / "engines/fleet"), str(_TESTS / "engines/colocated"), str(_TESTS / "export")]

# these are found on the path above
from at_once import TestsAtOnce  # noqa: E402
from backends import BACKENDS  # noqa: E402
from receiver_harness import MakeSender, OneEngineSender, Receiver  # noqa: E402

AT_ONCE = TestsAtOnce()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `at_once` beside the others of its file. It has no fixtures."""
    if pyfuncitem.get_closest_marker("at_once") is None:
        return None
    AT_ONCE.run(pyfuncitem)
    return True


def pytest_sessionfinish() -> None:
    AT_ONCE.end()


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def receiver(backend: str) -> Receiver:
    return Receiver(backend)


@pytest.fixture
async def make_sender(backend: str, receiver: Receiver) -> AsyncIterator[MakeSender]:
    senders: list[OneEngineSender] = []

    def make(*, timeout_seconds: float = 30.0) -> OneEngineSender:
        senders.append(OneEngineSender(backend, receiver, timeout_seconds=timeout_seconds))
        return senders[-1]

    yield make
    for sender in senders:
        await sender.shutdown()
    await receiver.shutdown()
