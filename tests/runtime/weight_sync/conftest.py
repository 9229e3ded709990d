"""Makes the helpers of the tests importable; the two ends of every backend, and of one that is only here."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS)]
sys.path += [str(_TESTS / "fleet"), str(_TESTS / "colocated"), str(_TESTS / "export")]

# these are found on the path above
from backends import BACKENDS  # noqa: E402
from receiver_harness import MakeSender, OneEngineSender, Receiver  # noqa: E402


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
