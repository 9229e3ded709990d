"""What the operator serves: its liveness, 200 while its looks at the cluster succeed, and its metrics."""

import socket
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

HEALTH_PATH = "/healthz"
METRICS_PATH = "/metrics"


class Health:
    """Alive as long as a look at the cluster succeeded within the last `limit_seconds`."""

    def __init__(self, *, limit_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit_seconds = limit_seconds
        self._monotonic = monotonic
        self._last = monotonic()

    def mark_success(self) -> None:
        """A look at the cluster has succeeded."""
        self._last = self._monotonic()

    @property
    def silent_seconds(self) -> float:
        """Time since the last success."""
        return self._monotonic() - self._last

    @property
    def is_alive(self) -> bool:
        """Whether the last success is recent enough."""
        return self.silent_seconds < self._limit_seconds


async def serve(health: Health, metrics: CollectorRegistry, *, port: int) -> web.AppRunner:
    """Serve `health` and `metrics` on all addresses; the caller cleans the runner up."""

    async def answer(_: web.Request) -> web.Response:
        if health.is_alive:
            return web.Response(text="ok\n")
        return web.Response(
            status=503, text=f"no successful look at the cluster for {health.silent_seconds:.0f} s\n"
        )

    async def answer_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get(HEALTH_PATH, answer)
    app.router.add_get(METRICS_PATH, answer_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    # the kubelet probes the pod's address, of whichever version of IP
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    listener = socket.create_server(("", port), family=family, dualstack_ipv6=has_both)
    await web.SockSite(runner, listener).start()
    return runner
