"""vLLM without a model, behind the real guard: it refuses and keeps waiting what the real one does."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import torch
from starlette.types import ASGIApp, Receive, Scope, Send

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines import routes
from grpo_runtime.engines.serve.http import BadRequestError, read_json, send_error, send_json
from grpo_runtime.rollouts.interface import EngineError, Rollout, VersionSpan
from grpo_runtime.rollouts.wire import EngineCall
from grpo_runtime.weight_sync.interface import Receiver, WeightSyncError

Happening = Callable[[], Awaitable[object]]
NUM_TOKENS = 3
LARGEST_SEED = 1 << 30
"""Larger ones are cut: a token has 32 bits."""
WITH_BODY = (routes.INIT_PATH, routes.UPDATE_PATH, routes.FINISH_PATH)


class RefusedError(Exception):
    """vLLM answers a call with an error."""

    def __init__(self, message: str, *, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class FakeVLLM:
    """One engine: the application behind the guard, and the engine client that the guard asks.

    `during` says by path what happens while a call is answered: it may wait, call the guard, or raise
    RefusedError. `next_versions` are the weight versions of the next completions, token by token; without
    them the first token is of the weights at the start of the call and the others of those at its end. A
    completion's tokens are its seed and the numbers that follow, or what `says` makes of its prompt.
    """

    weight_version: str = "default"
    weights: str | None = None
    """What the sender said of the weights that were finished last."""
    receiver: Receiver | None = None
    """Takes the weights; without one only what the sender says of them is kept."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the receiver gave at the last finish."""
    errored: bool = False
    says: Callable[[tuple[int, ...]], Sequence[int]] | None = None
    logprob: float = -1.0
    """Of every token that it samples."""
    probe_logprob: float = -1.0
    logprob_of_cores: Mapping[int | None, float] = field(default_factory=dict)
    """Of the cores whose probe has another logprob."""
    during: dict[str, Happening] = field(default_factory=dict)
    next_versions: deque[tuple[str, ...]] = field(default_factory=deque)
    reached: list[str] = field(default_factory=list)
    asked: list[EngineCall] = field(default_factory=list)
    """The calls for completions."""
    num_sampling: int = 0
    """Completions in work at this moment."""
    num_generated: int = 0
    """Tokens of finished completions, and what a test adds for those in work."""
    num_preemptions: int = 0
    stages: bool = False
    """Whether it may receive before it is paused."""
    num_cores: int = 1
    """Each of which counts the same; 0 when vLLM keeps no statistics."""
    num_handed_over: int = 1
    """Tokens that there are of a completion when it is aborted."""
    is_stopping: bool = False
    """Whether it refuses calls for completions."""
    is_update_open: bool = False
    _sender: str | None = None
    _received: str | None = None
    _aborted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once, at the next abort."""
    _running: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._running.set()

    @property
    def is_paused(self) -> bool:
        """Whether requests are paused."""
        return not self._running.is_set()

    async def get_weight_version(self) -> str:
        """The engine client's call for it, which the guard makes."""
        await self._let_happen(routes.WEIGHT_INFO_PATH)
        return self.weight_version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every route that the guard passes on."""
        path = scope["path"]
        self.reached.append(f"{scope['method']} {path}")
        try:
            if path == routes.METRICS_PATH:
                await self._let_happen(path)
                return await self._metrics(scope, send)
            body = await read_json(receive) if path in WITH_BODY else {}
            await self._let_happen(path)
            query = parse_qs(scope.get("query_string", b"").decode())
            answer = self._verb(path, body, query=query)
        except RefusedError as error:
            if path == routes.UPDATE_PATH:
                # vLLM ends an update that fails
                self.is_update_open = False
            await send_error(send, error.status, str(error))
        else:
            await send_json(send, 200, answer)

    async def _metrics(self, scope: Scope, send: Send) -> None:
        """The numbers that are asked for by name, as Prometheus reads them."""
        values = {
            "vllm:generation_tokens_total": self.num_generated,
            "vllm:num_requests_running": self.num_sampling,
            "vllm:num_preemptions_total": self.num_preemptions,
        }
        names = parse_qs(scope["query_string"].decode()).get("name[]", list(values))
        lines = [
            f'{name}{{engine="{core}"}} {values[name]:.1f}\n'
            for name in names
            for core in range(self.num_cores)
        ]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": "".join(lines).encode()})

    async def _let_happen(self, path: str) -> None:
        if path in self.during:
            await self.during[path]()

    def _verb(self, path: str, body: Mapping[str, Any], *, query: Mapping[str, list[str]]) -> dict[str, Any]:
        if path == routes.PAUSE_PATH:
            self._running.clear()
            # without a mode vLLM aborts what is in flight
            if query.get("mode") != ["keep"]:
                self._abort()
        elif path == routes.RESUME_PATH:
            self._running.set()
        elif path == routes.INIT_PATH:
            self._init(body["init_info"])
        elif path == routes.START_PATH:
            self._start()
        elif path == routes.UPDATE_PATH:
            self._update(body["update_info"])
        elif path == routes.FINISH_PATH:
            self._finish(body["weight_version"])
        elif path == routes.SHUTDOWN_PATH:
            if self.is_update_open:
                raise RefusedError("Cannot release a trainer connection during a weight update")
            self._sender = None
        return {"is_paused": self.is_paused, "weight_version": self.weight_version}

    def _init(self, info: Mapping[str, Any]) -> None:
        self._received = None
        if self.receiver is None:
            self._sender = info["sender"]
        else:
            self._by_receiver(lambda receiver: receiver.init(info))

    def _by_receiver(self, call: Callable[[Receiver], None]) -> None:
        assert self.receiver is not None
        try:
            call(self.receiver)
        except WeightSyncError as error:
            raise RefusedError(str(error)) from error

    def _start(self) -> None:
        if not self.is_paused and not self.stages:
            # vLLM does not look, and samples from half of the new weights
            raise RefusedError("start_weight_update called while requests are running")
        if self.is_update_open:
            raise RefusedError("start_weight_update called while a weight update is already active")
        self.is_update_open, self._received = True, None
        if self.receiver is not None:
            self.receiver.start()

    def _update(self, info: Mapping[str, Any]) -> None:
        if not self.is_update_open:
            raise RefusedError("start_weight_update must be called before update_weights")
        if "abort" in info:
            raise RefusedError(f"weight update aborted: {info['abort']}")
        if self.receiver is not None:
            self._by_receiver(lambda receiver: receiver.update(info))
            self._received = "taken by the receiver"
            return
        if info["sender"] != self._sender:
            raise RefusedError(f"the receiver is not connected to sender {info['sender']}")
        self._received = info["weights"]

    def _finish(self, version: str) -> None:
        if not self.is_update_open or self._received is None:
            raise RefusedError("finish_weight_update called without a matching update")
        if not self.is_paused:
            raise RefusedError("finish_weight_update called while requests are running")
        self.is_update_open = False
        self.weights, self._received = self._received, None
        if self.receiver is not None:
            self.tensors = dict(self.receiver.take())
        self.weight_version = version

    async def logprobs(self, call: EngineCall) -> list[float]:
        """The engine client's call for a probe, which the guard makes."""
        self.reached.append(f"POST {routes.LOGPROBS_PATH}")
        await self._let_happen_to_call(routes.LOGPROBS_PATH)
        logprob = self.logprob_of_cores.get(call.core, self.probe_logprob)
        return [logprob] * (len(call.token_ids) - 1)

    async def hand_over(self) -> None:
        """The engine client's call for it, which the guard makes. It does not need the core."""
        self.reached.append(f"POST {routes.HAND_OVER_PATH}")
        await self._let_happen(routes.HAND_OVER_PATH)
        self._abort()

    def _abort(self) -> None:
        self._aborted.set()
        self._aborted = asyncio.Event()

    async def sample(self, call: EngineCall, *, name: str) -> list[Rollout]:
        """The engine client's call for completions, which the guard makes."""
        self.reached.append(f"POST {routes.SAMPLE_PATH}")
        if self.is_stopping:
            raise EngineError(f"engine {name} is asked to stop")
        self.asked.append(call)
        num_samples, aborted = call.parameters.get("n", 1), self._aborted
        first_version = self.weight_version
        self.num_sampling += num_samples
        working = asyncio.ensure_future(self._let_happen_to_call(routes.SAMPLE_PATH))
        aborting = asyncio.ensure_future(aborted.wait())
        try:
            await asyncio.wait((working, aborting), return_when=asyncio.FIRST_COMPLETED)
            if not aborted.is_set():
                working.result()
        finally:
            self.num_sampling -= num_samples
            working.cancel()
            aborting.cancel()
            await asyncio.gather(working, aborting, return_exceptions=True)
        rollouts = []
        for index in range(num_samples):
            token_ids, ends = self._sampled(call, seed=call.parameters["seed"] + index)
            if aborted.is_set():
                token_ids, ends = token_ids[: self.num_handed_over], False
            self.num_generated += len(token_ids)
            own = (first_version, *[self.weight_version] * len(token_ids))[: len(token_ids)]
            rollout = self._rollout(call, token_ids, own=own, engine=name)
            rollouts.append(replace(rollout, is_terminated=ends, is_aborted=aborted.is_set()))
        return rollouts

    def _sampled(self, call: EngineCall, *, seed: int) -> tuple[tuple[int, ...], bool]:
        """What it samples behind all that a call brings, and whether the completion ends by itself."""
        if self.says is None:
            return tuple(seed % LARGEST_SEED + place for place in range(NUM_TOKENS)), False
        begin = len(call.token_ids) - call.num_so_far
        whole = tuple(self.says(tuple(call.token_ids[:begin])))
        assert tuple(call.token_ids[begin:]) == whole[: call.num_so_far], "it goes on from other tokens"
        end = call.num_so_far + call.parameters["max_tokens"]
        return whole[call.num_so_far : end], len(whole) <= end

    async def _let_happen_to_call(self, path: str) -> None:
        try:
            await self._let_happen(path)
        except RefusedError as error:
            raise BadRequestError(str(error)) if error.status == 400 else error from error
        await self._running.wait()
        if self.is_update_open and not self.stages:
            raise RefusedError("a request ran into half of the new weights")

    def _rollout(
        self, call: EngineCall, token_ids: tuple[int, ...], *, own: tuple[str, ...], engine: str
    ) -> Rollout:
        versions = self.next_versions.popleft() if self.next_versions else own
        spans: list[VersionSpan] = []
        for version, tokens in groupby(versions):
            start = spans[-1].end if spans else 0
            spans.append(VersionSpan(PolicyVersion.parse(version), start, start + len(list(tokens))))
        return Rollout(
            prompt_ids=tuple(call.token_ids),
            completion_ids=token_ids[: len(versions)],
            rollout_logprobs=(self.logprob,) * len(versions),
            versions=tuple(spans),
            is_terminated=False,
            engine=engine,
        )


async def call_asgi(
    app: ASGIApp, vllm: FakeVLLM, *, method: str, path: str, query: bytes, headers: Any, parts: list[bytes]
) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one request to `app`, whose body comes in `parts`."""
    status, answer = await call_asgi_for_bytes(
        app, vllm, method=method, path=path, query=query, headers=headers, parts=parts
    )
    return status, json.loads(answer)


async def call_asgi_for_bytes(
    app: ASGIApp, vllm: FakeVLLM, *, method: str, path: str, query: bytes, headers: Any, parts: list[bytes]
) -> tuple[int, bytes]:
    """Status and answer of one request, whose caller stays."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=vllm)),
    }
    waiting, sent = deque(parts), list[Any]()

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": waiting.popleft(), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]
