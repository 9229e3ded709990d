"""An engine that answers the trainer's calls and has no model, and a way for weights that moves nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from grpo_runtime.rollout.engine_client import Address
from grpo_runtime.serve import routes
from grpo_runtime.weight_sync.registry import GLOO, Backend, Reach


@dataclass
class FakeEngine:
    """Each flag says how it misbehaves from now on. `address` is there once it is served; `requests` are
    the bodies of generate calls."""

    name: str
    is_pause_hanging: bool = False
    is_generate_hanging: bool = False
    address: Address = field(init=False)
    num_pauses: int = 0
    admitted: str = ""
    requests: list[object] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Every route of a rollout pod."""
        if request.path == routes.PAUSE_PATH:
            self.num_pauses += 1
            if self.is_pause_hanging:
                await asyncio.Event().wait()
        if request.path == routes.GENERATE_PATH:
            self.requests.append(await request.json())
            if self.is_generate_hanging:
                await asyncio.Event().wait()
            count = self.requests[-1]["sampling_params"]["n"]
            return web.json_response({"choices": [self._choice(index) for index in range(count)]})
        if request.path == routes.ADMIT_PATH:
            self.admitted = (await request.json())["version"]
        return web.json_response(
            {
                "instance": f"process of {self.name}",
                "name": self.name,
                "attempt": 1,
                "version": self.admitted,
                "live": True,
                "is_paused": False,
            }
        )

    def _choice(self, index: int) -> dict[str, object]:
        return {
            "index": index,
            "token_ids": [5],
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": -1.0}]},
            "weight_versions": [{"version": self.admitted, "start": 0, "end": 1}],
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEngine"]:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = Address("127.0.0.1", runner.addresses[0][1])
        try:
            yield self
        finally:
            await runner.cleanup()


class FakeSender:
    """Delivers nothing, at once."""

    async def init(self) -> None: ...

    async def start(self) -> None: ...

    async def update(self, weights: object) -> None: ...

    async def finish(self, version: str) -> None: ...

    async def abort(self) -> None: ...

    async def shutdown(self) -> None: ...


FAKE_BACKEND = Backend(
    name="fake",
    reach=Reach.NETWORK,
    make_sender=lambda channel, settings: FakeSender(),
    prepare=lambda source: None,
    make_receiver=GLOO.make_receiver,
)
