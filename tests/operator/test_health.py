"""The operator is alive as long as its looks at the cluster succeed."""

import socket

from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from grpo_operator.health import HEALTH_PATH, Health, serve

LIMIT_SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_it_is_alive_until_the_limit_and_again_after_a_success() -> None:
    clock = Clock()
    health = Health(limit_seconds=LIMIT_SECONDS, monotonic=clock)
    clock.seconds = LIMIT_SECONDS - 1
    assert health.is_alive
    clock.seconds = LIMIT_SECONDS
    assert not health.is_alive
    health.mark_success()
    assert health.is_alive
    clock.seconds += LIMIT_SECONDS
    assert not health.is_alive


async def test_the_kubelet_is_told_for_how_long_no_look_has_succeeded() -> None:
    clock = Clock()
    health = Health(limit_seconds=LIMIT_SECONDS, monotonic=clock)
    runner = await serve(health, CollectorRegistry(), port=0)
    try:
        [(_, port, *_)] = runner.addresses
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=LIMIT_SECONDS).close()
        async with ClientSession() as session:
            url = f"http://127.0.0.1:{port}{HEALTH_PATH}"
            async with session.get(url) as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
            clock.seconds = 75.0
            async with session.get(url) as answer:
                said = await answer.text()
                assert (answer.status, said) == (503, "no successful look at the cluster for 75 s\n")
    finally:
        await runner.cleanup()
