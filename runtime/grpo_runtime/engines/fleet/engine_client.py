"""One rollout engine over HTTP: its calls, how they fail, and the connections that they share.

Every call has a deadline, and every failure is an EngineError; none is retried. Connections are used
again, because a weight sync is many short calls.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp.connector import Connection
from prometheus_client.parser import text_string_to_metric_families

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines import routes
from grpo_runtime.rollouts.frames import encode_frame
from grpo_runtime.rollouts.interface import EngineError, EngineGoneError, EngineTimeoutError
from grpo_runtime.rollouts.wire import EngineCall
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.interface import Info, WeightSyncError

CONNECT_TIMEOUT_SECONDS = 5.0
REUSE_SECONDS = 1.0
"""How long an idle connection may be used again. vLLM's server closes one after 5 s, and a call that
meets a closed one fails. The time between is for a server that is busy, and closes it before it reads."""
_NUM_TOKENS = "vllm:generation_tokens_total"
_NUM_RUNNING = "vllm:num_requests_running"
_NUM_PREEMPTIONS = "vllm:num_preemptions_total"
_MAX_ERROR_CHARACTERS = 500
MAX_BYTES = 32 << 20
"""Most bytes of an answer; that of metrics is the largest besides completions."""


class EngineRefusedError(EngineError):
    """The engine answered with an error; `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class EngineConflictError(EngineRefusedError):
    """HTTP 409: the engine belongs to a later attempt than ours, or is another process than we meant.
    Only the former ends an attempt."""

    is_superseded = True


@dataclass(frozen=True, order=True)
class Address:
    """Where an engine listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Identity:
    """What an engine says about itself. `instance` is unique to its process."""

    instance: str
    name: str
    attempt: int
    version: str
    is_live: bool


@dataclass(frozen=True)
class Load:
    """What an engine counts: tokens that it has generated, requests that it works on, and how often it has
    taken one out of its KV cache."""

    num_tokens: float
    num_running: float
    num_preemptions: float


class EngineClient:
    """Calls one engine at `address` for a trainer of `attempt`, in a session of `open_session`.

    With `instance` every call is for that process only: its successor at the same address refuses it.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        *,
        tokens: Tokens,
        attempt: int,
        instance: str | None = None,
    ) -> None:
        self.address = address
        self.instance = instance
        self._session = session
        self._tokens = tokens
        self._attempt = attempt

    def for_instance(self, instance: str) -> "EngineClient":
        """The same engine, bound to one process."""
        return EngineClient(
            self._session, self.address, tokens=self._tokens, attempt=self._attempt, instance=instance
        )

    async def identity(self, *, timeout_seconds: float) -> Identity:
        """Which process answers at this address. The call also sends our attempt to the engine."""
        answer = await self._admin("GET", routes.IDENTITY_PATH, timeout_seconds=timeout_seconds)
        return Identity(
            instance=str(answer["instance"]),
            name=str(answer["name"]),
            attempt=int(answer["attempt"]),
            version=str(answer["version"]),
            is_live=bool(answer["live"]),
        )

    async def is_paused(self, *, timeout_seconds: float) -> bool:
        """Whether the scheduler is paused. Answered by the engine core, so it also shows that it lives."""
        answer = await self._admin("GET", routes.IS_PAUSED_PATH, timeout_seconds=timeout_seconds)
        return bool(answer["is_paused"])

    async def load(self, *, timeout_seconds: float) -> Load | None:
        """What its server has heard of the engine core's work; None when it counts nothing.

        Of a hung core these are the numbers from before.
        """
        # vLLM counts for each of its data-parallel cores
        names = (_NUM_TOKENS, _NUM_RUNNING, _NUM_PREEMPTIONS)
        query = "?" + "&".join(f"name[]={name}" for name in names)
        text = await self._request(
            "GET", routes.METRICS_PATH + query, token=self._tokens.admin, timeout_seconds=timeout_seconds
        )
        samples = [
            sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples
        ]
        found = {
            name: sum(sample.value for sample in samples if sample.name == name)
            for name in {sample.name for sample in samples}
        }
        if not found.keys() >= set(names):
            return None
        return Load(*(found[name] for name in names))

    async def pause(
        self, *, mode: Literal["keep", "abort"], clears_cache: bool, timeout_seconds: float
    ) -> None:
        """Compute nothing until it is resumed. Requests in flight stay, or are answered with what there is of
        them. `clears_cache` forgets every cached key and value."""
        query = f"?mode={mode}&clear_cache={str(clears_cache).lower()}"
        await self._admin("POST", routes.PAUSE_PATH + query, timeout_seconds=timeout_seconds)

    async def resume(self, *, timeout_seconds: float) -> None:
        """Go on with the paused requests and take new ones."""
        await self._admin("POST", routes.RESUME_PATH, timeout_seconds=timeout_seconds)

    async def hand_over(self, *, timeout_seconds: float) -> None:
        """Let it answer every call for completions with what there is of them. Its core need not live."""
        await self._admin("POST", routes.HAND_OVER_PATH, timeout_seconds=timeout_seconds)

    async def admit(self, version: PolicyVersion, *, timeout_seconds: float) -> None:
        """Let the engine serve; it refuses when its weights are not of `version`."""
        body = {"version": str(version)}
        await self._admin("POST", routes.ADMIT_PATH, body=body, timeout_seconds=timeout_seconds)

    async def revoke(self, *, timeout_seconds: float) -> None:
        """Take the engine out of service."""
        await self._admin("POST", routes.REVOKE_PATH, timeout_seconds=timeout_seconds)

    async def weight_verb(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float) -> None:
        """One of vLLM's weight transfer verbs, by its path in `engines.routes`."""
        await self._admin("POST", path, body=body, timeout_seconds=timeout_seconds)

    async def sample(self, call: EngineCall, *, max_bytes: int) -> bytes:
        """Completions, as frames, which `engine_calls.read_rollouts` reads. There is no deadline: the caller
        watches the engine, and cancels the call when the engine is lost."""
        return await self._request(
            "POST",
            routes.SAMPLE_PATH,
            token=self._tokens.data,
            data=encode_frame(call.frame()),
            max_bytes=max_bytes,
            timeout_seconds=None,
        )

    async def logprobs(self, call: EngineCall, *, timeout_seconds: float) -> bytes:
        """The logprobs of a call's tokens, as a frame. The engine answers also before it is admitted."""
        return await self._request(
            "POST",
            routes.LOGPROBS_PATH,
            token=self._tokens.admin,
            data=encode_frame(call.frame()),
            timeout_seconds=timeout_seconds,
        )

    async def _admin(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, timeout_seconds: float
    ) -> Mapping[str, Any]:
        text = await self._request(
            method, path, token=self._tokens.admin, body=body, timeout_seconds=timeout_seconds
        )
        what = self._describe(method, path)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineRefusedError(f"{what}: the answer is not JSON", status=200) from error
        if not isinstance(answer, dict):
            raise EngineRefusedError(f"{what}: the answer is not a JSON object", status=200)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        *,
        token: str,
        body: Mapping[str, Any] | None = None,
        data: bytes | None = None,
        max_bytes: int = MAX_BYTES,
        timeout_seconds: float | None,
    ) -> bytes:
        headers = {"Authorization": f"Bearer {token}", routes.ATTEMPT_HEADER: str(self._attempt)}
        if self.instance is not None:
            headers[routes.INSTANCE_HEADER] = self.instance
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS)
        what = self._describe(method, path)
        try:
            async with self._session.request(
                method, f"http://{self.address}{path}", json=body, data=data, headers=headers, timeout=timeout
            ) as response:
                answer = await _read(response, what=what, max_bytes=max_bytes)
                if response.status != 200:
                    raise _refusal(what, response.status, answer.decode(errors="replace"))
                return answer
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineGoneError(f"{what}: no connection within {CONNECT_TIMEOUT_SECONDS:g} s") from error
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            limit = "the connection's own limit" if timeout_seconds is None else f"{timeout_seconds:g} s"
            raise EngineTimeoutError(f"{what}: no answer within {limit}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineGoneError(f"{what}: {error or type(error).__name__}") from error

    def _describe(self, method: str, path: str) -> str:
        return f"{method} {path.partition('?')[0]} on engine {self.address}"


class HttpChannel:
    """A `ControlChannel` to one engine, each of whose calls has the deadline."""

    def __init__(self, client: EngineClient, *, timeout_seconds: float) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds

    async def init(self, info: Info) -> None:
        """Let the engine connect to the sender that wrote `info`."""
        await self._verb(routes.INIT_PATH, {"init_info": dict(info)})

    async def start(self) -> None:
        """Open an update."""
        await self._verb(routes.START_PATH, {})

    async def update(self, info: Info) -> None:
        """Let the engine receive; it answers when it has checked everything."""
        await self._verb(routes.UPDATE_PATH, {"update_info": dict(info)})

    async def finish(self, version: str) -> None:
        """Apply what was received."""
        await self._verb(routes.FINISH_PATH, {"weight_version": version})

    async def shutdown(self) -> None:
        """Let the engine close its connection to the sender."""
        await self._verb(routes.SHUTDOWN_PATH, {})

    async def _verb(self, path: str, body: Info) -> None:
        try:
            await self._client.weight_verb(path, body, timeout_seconds=self._timeout_seconds)
        except EngineError as error:
            raise WeightSyncError.told_in(str(error)) from error


def open_session() -> aiohttp.ClientSession:
    """A session for calls to engines, with as many connections as there are calls at a time."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_SECONDS)
    return aiohttp.ClientSession(connector=connector, response_class=EngineResponse)


class EngineResponse(aiohttp.ClientResponse):
    """An answer of an engine. After an internal error its connection is not used again: vLLM's server closes
    it without saying so."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read status and headers."""
        protocol = connection.protocol
        await super().start(connection)
        if self.status >= 500 and protocol is not None:
            if self.connection is None:
                # all of it was there, so that the next call might have taken the connection already
                protocol.close()
            else:
                protocol.force_close()
        return self


async def _read(response: aiohttp.ClientResponse, *, what: str, max_bytes: int) -> bytes:
    """The body of an answer. Raises EngineRefusedError for one that is larger than any should be."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise EngineRefusedError(f"{what}: the answer has more than {max_bytes} bytes", status=200)
    return bytes(body)


def _refusal(what: str, status: int, text: str) -> EngineRefusedError:
    message = f"{what}: HTTP {status}: {text[:_MAX_ERROR_CHARACTERS]}"
    return (EngineConflictError if status == 409 else EngineRefusedError)(message, status=status)
