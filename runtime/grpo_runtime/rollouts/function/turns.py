"""Makes completions with the user's function: rank 0's side.

Each completion goes its own way: it asks the function what comes next, and the engines for that turn, without
waiting for any other completion. Several calls of `sample` may run at the same time, all with the same
process of the function.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.process.line_worker import WorkerFailedError, WorkerProgram
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.collect import Source, Take
from grpo_runtime.rollouts.function.function_process import FunctionProcess, OpenConversation, Said
from grpo_runtime.rollouts.function.transcript import Transcript
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.function.worker import FIELD
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, GenerateRequest, Rollout

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 30.0)
"""Before each other try to make what is not finished: what the function waits for may come back."""
HANG_SECONDS = 10.0
"""How long the event loop of a process that others use as well may stand before it is taken for hung."""


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """The user's function: exactly one of `function` and `file` is set."""

    function: str | None
    """`module:attribute`, importable where the trainer runs."""
    file: FunctionFile | None
    timeout_seconds: float
    """Time limit of the user's code between two turns of a completion, and before the first and after the
    last one."""
    max_turns: int | None
    max_tokens: int
    """Longest completion, added tokens included."""


class RolloutFunction:
    """The process of the user's function. `async with` starts and ends it; starting raises UserError when
    there is no such function."""

    def __init__(
        self,
        options: FunctionOptions,
        *,
        decoder: CompletionDecoder,
        vocab_size: int,
        pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self.pauses_seconds = pauses_seconds
        self._hang_seconds = hang_seconds
        self._options = options
        self._decoder = decoder
        self._num_token_ids = min(len(decoder.tokenizer), vocab_size)
        self._program = WorkerProgram(
            module="grpo_runtime.rollouts.function.worker",
            config=worker_config(options),
            what=f"{FIELD}: starting it",
        )
        self._process: asyncio.Task[FunctionProcess] | None = None
        """The newest one that all share, which may still be starting."""
        self._last_try = asyncio.Lock()

    async def __aenter__(self) -> "RolloutFunction":
        try:
            await self._running()
        except WorkerFailedError as error:
            raise UserError(str(error)) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        starting, self._process = self._process, None
        if starting is not None:
            starting.cancel()
            [process] = await asyncio.gather(starting, return_exceptions=True)
            if isinstance(process, FunctionProcess):
                await process.close(why="the run has ended")

    def over(self, engines: Engines) -> Source:
        """The source that makes samples with the function: each turn is a request to `engines`, which rest
        behind the last one, unless they are to stay awake."""
        return _Turns(self, engines)

    def transcript(self, request: GenerateRequest) -> Transcript:
        """An empty one."""
        return Transcript(request, max_tokens=self._options.max_tokens, max_turns=self._options.max_turns)

    def conversation(self, process: FunctionProcess) -> AbstractContextManager[OpenConversation]:
        """A new one with the process, each of whose ways to the next turn has the deadline."""
        return process.conversation(timeout_seconds=self._options.timeout_seconds)

    @asynccontextmanager
    async def own_process(self) -> AsyncIterator[FunctionProcess]:
        """A process for the last try to make some completions, one such try at a time. Which completion of
        which call has ended the process that all share, or blocked it, is not known; what ends this one is
        its try. Raises what `process` raises."""
        async with self._last_try:
            process = await self._start()
            try:
                yield process
            finally:
                await process.close(why="its only try is over")

    @asynccontextmanager
    async def process(self) -> AsyncIterator[FunctionProcess]:
        """The process that all share, for one try to make completions. Where it has ended, another one is
        started, for all that need one. Raises WorkerFailedError when that does not start, and UserError when
        it does not find the function.

        A try that fails ends the process, with what else the function has begun, which must not continue in
        the next try. Where others use the process it ends only if it hangs.
        """
        process = await self._running()
        try:
            with process.used():
                yield process
        except (FunctionFailedError, WorkerFailedError):
            if not process.is_used:
                await process.close(why="a try to make completions has failed")
            elif await process.hangs(after_seconds=self._hang_seconds):
                await process.close(why=f"its event loop was blocked for more than {self._hang_seconds:g} s")
            raise

    async def _running(self) -> FunctionProcess:
        if self._process is None or (self._process.done() and not _is_up(self._process)):
            self._process = asyncio.create_task(self._start())
        # for all who wait for it
        return await asyncio.shield(self._process)

    async def _start(self) -> FunctionProcess:
        process = FunctionProcess(self._program)
        await process.start()
        return process

    def encode(self, what: str | list[int]) -> list[int]:
        """The tokens of what was added. Raises UserError for ids that the tokenizer does not have, and for
        text that is not Unicode."""
        if isinstance(what, str):
            try:
                what.encode()
            except UnicodeEncodeError as error:
                raise UserError(
                    f"{FIELD}: the function added text that is not Unicode ({error}): decode what a tool "
                    "returns with errors='replace'"
                ) from error
            what = list(self._decoder.tokenizer(what, add_special_tokens=False)["input_ids"])
        for token in what:
            if not 0 <= token < self._num_token_ids:
                raise UserError(
                    f"{FIELD}: the function added token {token}, but tokenizer and model have "
                    f"{self._num_token_ids}: add ids of this tokenizer, or text"
                )
        return what

    def turn(self, rollout: Rollout) -> dict[str, Any]:
        """The turn as the function gets it."""
        ids = list(rollout.completion_ids)
        return {
            "token_ids": ids,
            "logprobs": rollout.rollout_logprobs,
            "text": self._decoder.text(ids),
            "is_terminated": rollout.is_terminated,
        }


@dataclass(frozen=True)
class _Sample:
    """A completion that is made: its group, and its index there."""

    group: Group
    place: int

    @property
    def request(self) -> GenerateRequest:
        return self.group.requests[self.place]

    @property
    def row(self) -> str:
        return f"row {self.group.prompt.index + 1} of the dataset"


class _Turns:
    """All completions of all calls, each in a task of its own."""

    def __init__(self, function: RolloutFunction, engines: Engines) -> None:
        self._function = function
        self._engines = engines
        self._sampler = TurnSampler(engines)

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss. Where the function fails for one of them, what of `groups` is
        not finished begins anew with its first turn; other calls continue."""
        left = [_Sample(group, place) for group in groups for place in group.missing]

        def finish(sample: _Sample, rollout: Rollout) -> None:
            left.remove(sample)
            take(sample.group, sample.place, rollout)

        num_failures = 0
        while left:
            is_last_try = num_failures == len(self._function.pauses_seconds)
            process = self._function.own_process() if is_last_try else self._function.process()
            try:
                await self._make(list(left), process, finish=finish)
            except FunctionFailedError as error:
                num_failures += 1
                await self._recover(error, num_failures, num_left=len(left))
        if not stays_awake:
            await self._engines.rest()

    async def _recover(self, error: FunctionFailedError, num_failures: int, *, num_left: int) -> None:
        """Wait for another try, or raise the error when there is none."""
        pauses = self._function.pauses_seconds
        if num_left == 0:
            logger.warning("%s. All completions were finished", error)
        elif num_failures > len(pauses):
            raise FunctionFailedError(f"{error}. It was tried {num_failures} times") from error
        else:
            pause = pauses[num_failures - 1]
            logger.warning(
                "%s. In %g s the %d completions that are not finished begin anew", error, pause, num_left
            )
            await asyncio.sleep(pause)

    async def _make(
        self,
        samples: Sequence[_Sample],
        opened: AbstractAsyncContextManager[FunctionProcess],
        *,
        finish: Callable[[_Sample, Rollout], None],
    ) -> None:
        """All of these, which are of one step. The first failure ends the others, and so does the end of the
        process."""
        try:
            async with opened as process:
                making = [
                    asyncio.create_task(self._make_one(sample, process=process, finish=finish))
                    for sample in samples
                ]
                together = asyncio.gather(*making)
                try:
                    either: set[asyncio.Future[Any]] = {together, process.ended}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not together.done():
                        raise WorkerFailedError(process.ended.result())
                    together.result()
                finally:
                    together.cancel()
                    for task in making:
                        task.cancel()
                    await asyncio.gather(together, *making, return_exceptions=True)
        except WorkerFailedError as error:
            raise _no_next_turn(f"in step {samples[0].group.step + 1}", error) from error

    async def _make_one(
        self, sample: _Sample, *, process: FunctionProcess, finish: Callable[[_Sample, Rollout], None]
    ) -> None:
        """One completion. It is finished before the function has ended where that is cut."""
        transcript = self._function.transcript(sample.request)
        with self._function.conversation(process) as conversation:
            with self._sampler.joined() as number:
                said = await _in_time(conversation.begin(_given(sample)), sample)
                while (turn := self._next_turn(said, transcript, sample)) is not None:
                    rollout = await self._sampler.sample(number, turn)
                    transcript.take(rollout)
                    said = await _in_time(conversation.resume(self._function.turn(rollout)), sample)
            finish(sample, _finished(transcript, sample))
            if conversation.is_open:
                await _in_time(conversation.cut(), sample)

    def _next_turn(self, said: Said, transcript: Transcript, sample: _Sample) -> GenerateRequest | None:
        """What the engines are asked for when the function has said this; None where the completion is
        finished. Raises FunctionFailedError when the function raised."""
        if "error" in said:
            raise _failure(said, sample)
        for added in said["added"]:
            transcript.add(self._function.encode(added))
        return None if said.get("is_done") else transcript.next_turn(said["max_tokens"])


async def _in_time(way: Awaitable[T], sample: _Sample) -> T:
    """The way of a conversation to its next line. Raises FunctionFailedError when that is late."""
    try:
        return await way
    except WorkerFailedError as error:
        raise _no_next_turn(f"for {sample.row} in step {sample.group.step + 1}", error) from error


def _no_next_turn(where: str, error: WorkerFailedError) -> FunctionFailedError:
    return FunctionFailedError(
        f"{FIELD}: the function did not come to its next turn {where}: {error}: give what it waits for a "
        "deadline, or raise timeoutSeconds"
    )


def _is_up(starting: "asyncio.Task[FunctionProcess]") -> bool:
    """Whether the process has started and not ended."""
    if not starting.done() or starting.cancelled() or starting.exception() is not None:
        return False
    return not starting.result().ended.done()


def _given(sample: _Sample) -> dict[str, Any]:
    return {
        "prompt": sample.group.prompt.content,
        "prompt_ids": sample.request.prompt_ids,
        "columns": sample.group.prompt.columns,
        "sample_index": sample.place,
        "seed": sample.request.seed,
    }


def _finished(transcript: Transcript, sample: _Sample) -> Rollout:
    if transcript.num_turns == 0:
        raise UserError(
            f"{FIELD}: the function has sampled no turn for {sample.row} before it ended or "
            "sampling.maxTokens was reached: call conversation.sample first"
        )
    return transcript.rollout()


def _failure(said: Said, sample: _Sample) -> FunctionFailedError:
    logger.warning("%s: the function raised %s\n%s", FIELD, said["error"], said["traceback"])
    return FunctionFailedError(
        f"{FIELD}: the function raised {said['error']} for {sample.row} in step {sample.group.step + 1}: "
        "catch what a tool may raise"
    )


def worker_config(options: FunctionOptions) -> str:
    """The first argument of the worker, as JSON."""
    file = None if options.file is None else asdict(options.file)
    return json.dumps({"function": options.function, "file": file}, default=str)
