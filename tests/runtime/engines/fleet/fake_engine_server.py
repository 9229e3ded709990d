"""Rollout pods without a model: the real guard over a fake vLLM, and a way for weights that moves nothing."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from aiohttp import web
from fake_vllm import FakeVLLM, Happening, call_asgi, call_asgi_for_bytes
from guard_environment import ADMIN

from grpo_api.contract.endpoints import ROLLOUT_READY_PATH
from grpo_api.contract.environment import Env
from grpo_runtime.engines import routes
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.engines.serve.guard import Guard
from grpo_runtime.weight_sync.interface import Backend, Peer, Reach, Receiver, SenderSettings
from grpo_runtime.weight_sync.registry import GLOO
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import TAG_BYTES


async def _nothing() -> None:
    pass


class FakeEngine:
    """One pod, to be made where the environment is a rollout pod's (the fixture `pod_environment`).

    `vllm` is the process that it runs, for tests to look at and to script; `address` is there once it is
    served.
    """

    address: Address

    def __init__(self, name: str, *, make_receiver: Callable[[], Receiver] | None = None) -> None:
        self.name = name
        self._make_receiver = make_receiver
        self.num_to_lose = 0
        """So many of the next answers to calls for completions do not leave it."""
        self.before_answer: Happening = _nothing
        """What happens before an answer to a call for completions leaves it."""
        self._is_down = False
        self._may_serve = asyncio.Event()
        self._connections: set[asyncio.Transport] = set()
        self.restart()

    def hang_up(self) -> None:
        """Break every connection, and every new one until `answer_again` or `restart`."""
        self._is_down = True
        for connection in self._connections:
            connection.abort()
        self._connections.clear()

    async def begin_to_stop(self) -> None:
        """As on SIGTERM: what it samples is handed over, and calls for completions are refused."""
        self.vllm.is_stopping = True
        await self.vllm.hand_over()

    def take_no_connections(self) -> None:
        """As at the end of that: calls that it has are still answered, others meet nobody."""
        self._is_down = True

    def answer_again(self) -> None:
        """The same process can be reached again."""
        self._is_down = False

    def freeze_server(self) -> None:
        """Take connections and answer nothing, until `thaw` or `restart`."""
        self._may_serve.clear()

    def freeze_core(self) -> None:
        """Answer who it is and nothing that the engine core must answer, until `thaw` or `restart`."""
        may_go_on = self._core_may_go_on = asyncio.Event()
        for path in (routes.IS_PAUSED_PATH, routes.SAMPLE_PATH, routes.LOGPROBS_PATH, routes.PAUSE_PATH):
            self.vllm.during[path] = may_go_on.wait

    def thaw(self) -> None:
        """Go on where it stood still."""
        self.vllm.during.clear()
        self._core_may_go_on.set()
        self._may_serve.set()

    def restart(self) -> None:
        """A new process at the same address: no trainer has called it, it has the weights of the model."""
        self._is_down = False
        self._core_may_go_on = asyncio.Event()
        self._may_serve.set()
        self.vllm = FakeVLLM(receiver=self._make_receiver and self._make_receiver())
        with patch.dict(os.environ, {Env.INSTANCE: self.name}):
            self._guard = Guard(self.vllm)

    @property
    def num_connections(self) -> int:
        """How many connections have carried a call since it last hung up."""
        return len(self._connections)

    async def instance(self) -> str:
        """The id of the process that it runs."""
        _, identity = await self._ask(routes.IDENTITY_PATH)
        return str(identity["instance"])

    async def is_ready(self) -> bool:
        """What its readiness probe gets."""
        status, _ = await self._ask(ROLLOUT_READY_PATH)
        return status == 200

    async def note_attempt(self, *, attempt: int) -> None:
        """Let a trainer of `attempt` ask it who it is."""
        await self._ask(routes.IDENTITY_PATH, attempt=attempt)

    async def _ask(self, path: str, *, attempt: int = 1) -> tuple[int, dict[str, Any]]:
        headers = [
            (b"authorization", f"Bearer {ADMIN}".encode()),
            (routes.ATTEMPT_HEADER.encode(), b"%d" % attempt),
        ]
        return await call_asgi(
            self._guard, self.vllm, method="GET", path=path, query=b"", headers=headers, parts=[]
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEngine"]:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = Address("127.0.0.1", runner.addresses[0][1])
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        assert isinstance(request.transport, asyncio.Transport)
        if self._is_down:
            request.transport.abort()
            return web.Response()
        self._connections.add(request.transport)
        body = await request.read()
        await self._may_serve.wait()
        status, answer = await call_asgi_for_bytes(
            self._guard,
            self.vllm,
            method=request.method,
            path=request.path,
            query=request.query_string.encode(),
            headers=[(name.lower(), value) for name, value in request.raw_headers],
            parts=[body],
        )
        if request.path == routes.SAMPLE_PATH:
            await self.before_answer()
            if self.num_to_lose > 0:
                self.num_to_lose -= 1
                await asyncio.Event().wait()
        return web.Response(body=answer, status=status)


def sha256_of(weights: HostCopy) -> str:
    """What stands for the weights in a fake engine."""
    stream = b"".join(buffer.numpy().tobytes() for buffer in weights.buffers())
    return hashlib.sha256(stream[:-TAG_BYTES]).hexdigest()


class FakeConnection:
    """Delivers only a digest of the weights."""

    def __init__(self, peer: Peer) -> None:
        self.channel = peer.channel
        self._key = secrets.token_hex(4)

    async def init(self) -> None:
        await self.channel.init({"sender": self._key})

    async def update(self, weights: HostCopy) -> None:
        await self.channel.update({"sender": self._key, "weights": sha256_of(weights)})

    async def finish(self, version: str) -> None:
        await self.channel.finish(version)

    async def shutdown(self) -> None: ...


def fake_backend(connect: Callable[[Peer], FakeConnection] = FakeConnection) -> Backend[HostCopy]:
    """A backend whose senders are of such connections."""

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        connections = {name: connect(peer) for name, peer in engines.items()}
        return PairwiseSender(connections, settings)

    return Backend[HostCopy](
        name="fake",
        receives_while_serving=True,
        reach=Reach.NETWORK,
        prepare=HostCopy,
        make_sender=make_sender,
        make_receiver=GLOO.make_receiver,
    )


FAKE_BACKEND = fake_backend()


def staging_engine(name: str) -> FakeEngine:
    """One that may receive weights before it is paused."""
    engine = FakeEngine(name)
    engine.vllm.stages = True
    return engine
