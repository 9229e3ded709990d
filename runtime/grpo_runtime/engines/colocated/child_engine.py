"""A rank's side of the engine in another process: calls it, and notices when it ends or hangs."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from grpo_runtime.engines.colocated.child_liveness import (
    ChildLimits,
    call_began,
    call_ended,
    first_signs,
    missed_report,
    reported,
    why_hung,
)
from grpo_runtime.engines.colocated.child_messages import Message, decode_error, receive, send
from grpo_runtime.engines.colocated.engine_process import (
    EngineProcess,
    StartedProcess,
    StartProcess,
    start_watched,
)
from grpo_runtime.rollouts.frames import Frame
from grpo_runtime.rollouts.interface import (
    EngineError,
    EngineGoneError,
    EngineTimeoutError,
    GenerateRequest,
    OnFinished,
    Rollout,
)
from grpo_runtime.rollouts.wire import read_completion, read_logprobs, request_frame
from grpo_runtime.weight_sync.interface import Info

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_MAY_END_SECONDS = 5.0
"""How long a child that has closed its pipe may take to end, before it is killed."""


class ChildEngine:
    """A `LocalEngine` in a process of its own, which ends with this one.

    What a call raises in the child is raised here; EngineGoneError says that the child has ended, or was
    killed because it was hung.
    """

    def __init__(self, start: StartProcess, *, message: Mapping[str, Any], limits: ChildLimits) -> None:
        """Start the child, whose first message this is, and wait until its engine is there. Raises what
        starting it and making the engine raised."""
        self.patience = 1.0
        """How many times the usual limits it has before it counts as hung."""
        self._limits = limits
        self._lock = threading.Lock()
        self._reply: Future[list[Frame]] | None = None
        self._gone = ""
        self._why_killed = ""
        self._sampling: Sequence[GenerateRequest] = ()
        self._finished: dict[int, Rollout] = {}
        self._on_finished: OnFinished | None = None
        self._is_started = False
        self._is_closing = False
        self._signs = first_signs(time.monotonic())
        started, self._watcher = start_watched(start, self._watch, name="watch-engine")
        self._process, self._connection = started.process, started.connection
        self.channel = ChildChannel(self)
        try:
            self._wait(self._say(message), what="start", seconds=limits.start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def finished(self) -> Mapping[int, Rollout]:
        """What the last call of `sample` has finished, by the index of the request; also when it failed."""
        return self._finished

    def sleep(self, level: int) -> None:
        """Give memory back: the KV cache, and the weights to the CPU (level 1) or for good (level 2)."""
        self._call("sleep", level=level)

    def wake_up(self, tag: str) -> None:
        """Take memory again, for `weights` or for `kv_cache`."""
        self._call("wake_up", tag=tag)

    def reset_prefix_cache(self) -> None:
        """Forget what older weights computed."""
        self._call("reset_prefix_cache")

    def sample(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One completion for each request, in their order."""
        self._finished, self._on_finished = {}, on_finished
        self._sampling = requests
        try:
            self._say({"call": "sample", "arguments": {}}, map(request_frame, requests)).result()
        finally:
            self._sampling = ()
        return [self._finished[index] for index in range(len(requests))]

    def num_unfinished(self) -> int:
        """How many requests of the running `sample` are not finished. May be called in another thread."""
        return max(0, len(self._sampling) - len(self._finished))

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens after the first."""
        [frame] = self._call("probe_logprobs", token_ids=token_ids)
        return read_logprobs(frame)

    def ask(self, call: str, **arguments: Any) -> "Future[list[Frame]]":
        """Begin a call; its result is what comes with the answer."""
        return self._say({"call": call, "arguments": arguments})

    def close(self) -> None:
        """Kill the child and what it has started, and wait until it has ended."""
        self._is_closing = True
        self._process.kill()
        self._watcher.join()
        self._connection.close()

    def _call(self, call: str, **arguments: Any) -> list[Frame]:
        return self._wait(self.ask(call, **arguments), what=call, seconds=self._limits.call_seconds)

    def _wait(self, reply: "Future[list[Frame]]", *, what: str, seconds: float) -> list[Frame]:
        try:
            return reply.result(seconds)
        except TimeoutError as error:
            raise EngineTimeoutError(f"no answer to {what} within {seconds:g} s") from error

    def _say(self, header: Mapping[str, Any], frames: Iterable[Frame] = ()) -> "Future[list[Frame]]":
        reply: Future[list[Frame]] = Future()
        with self._lock:
            if self._gone:
                raise EngineGoneError(self._gone)
            if self._reply is not None:
                # its answer would be taken for that of the new one
                raise EngineError("the call before this one has no answer yet")
            self._reply = reply
            self._signs = call_began(self._signs, header.get("call", ""), now=time.monotonic())
        try:
            send(self._connection, header, frames)
        except OSError:
            # the child has ended, and the watcher says so in the reply
            logger.debug("the child closed its pipe before it read a call")
        return reply

    def _watch(self, started: StartedProcess) -> None:
        """Take what the child says until it ends; kill it when it is hung."""
        process, connection = started.process, started.connection
        try:
            while True:
                if connection.poll(_LOOK_SECONDS):
                    self._take(receive(connection))
                elif process.has_ended:
                    # a process that it has started holds its end of the pipe
                    raise EOFError
                else:
                    is_stopped = process.is_stopped
                    with self._lock:
                        self._signs = missed_report(self._signs, is_stopped=is_stopped, now=time.monotonic())
                if self._is_hung():
                    process.kill()
        except (EOFError, OSError):
            self._has_ended(process)
        except Exception as error:
            # nobody would read what it says from now on
            self._why_killed = f"it said what is not understood: {type(error).__name__}: {error}"
            process.kill()
            self._has_ended(process)

    def _take(self, message: Message) -> None:
        header = message.header
        if "finished" in header:
            index = header["finished"]
            [frame] = message.frames
            rollout = read_completion(frame, prompt_ids=self._sampling[index].prompt_ids)
            self._finished[index] = rollout
            if self._on_finished is not None:
                self._on_finished(index, rollout)
        elif "num_steps" in header:
            with self._lock:
                self._signs = reported(self._signs, header["num_steps"], now=time.monotonic())
        else:
            self._resolve(message)

    def _resolve(self, message: Message) -> None:
        is_done = "error" not in message.header
        with self._lock:
            reply, self._reply = self._reply, None
            self._signs = call_ended(self._signs, is_done=is_done, now=time.monotonic())
            if not self._is_started:
                # nothing was expected of it until now
                self._is_started, self._signs = True, first_signs(time.monotonic())
        # the caller may have stopped waiting
        if reply is None or not reply.set_running_or_notify_cancel():
            return
        if is_done:
            reply.set_result(message.frames)
        else:
            reply.set_exception(decode_error(message.header))

    def _is_hung(self) -> bool:
        """Whether it is found hung now, for the first time."""
        if not self._is_started or self._why_killed:
            return False
        limits = self._limits.times(self.patience)
        self._why_killed = why_hung(self._signs, limits=limits, now=time.monotonic())
        return bool(self._why_killed)

    def _has_ended(self, process: EngineProcess) -> None:
        how = process.end(seconds=_MAY_END_SECONDS)
        with self._lock:
            self._gone = self._why_killed or how
            reply, self._reply = self._reply, None
        if reply is not None and reply.set_running_or_notify_cancel():
            reply.set_exception(EngineGoneError(self._gone))
        elif not self._is_closing:
            logger.warning("the engine of this rank is gone while it had nothing to do: %s", self._gone)


class ChildChannel:
    """The verbs of weight transfer as calls of the child."""

    def __init__(self, engine: ChildEngine) -> None:
        self._engine = engine

    async def init(self, info: Info) -> None:
        """Let the engine connect to the sender that wrote `info`."""
        await self._ask("init", info=dict(info))

    async def start(self) -> None:
        """Open an update."""
        await self._ask("start")

    async def update(self, info: Info) -> None:
        """Let the engine take what `info` names; it answers when it has checked everything."""
        await self._ask("update", info=dict(info))

    async def finish(self, version: str) -> None:
        """Apply what was taken, as `version`."""
        await self._ask("finish", version=version)

    async def shutdown(self) -> None:
        """Let the engine close its connection to the sender."""
        await self._ask("shutdown")

    async def _ask(self, call: str, **arguments: Any) -> None:
        await asyncio.wrap_future(self._engine.ask(call, **arguments))
