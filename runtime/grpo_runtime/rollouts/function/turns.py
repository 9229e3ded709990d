"""Makes completions with the user's function: rank 0's side.

Each completion goes its own way: it asks the function what comes next, and the engines for that turn, without
waiting for any other completion. Several calls of `sample` may run at the same time, all with the same
process of the function.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.process.line_worker import WorkerFailedError, WorkerProgram, failure_in, shortened
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.collect import Source
from grpo_runtime.rollouts.function.function_process import FunctionProcess, Line, OpenConversation
from grpo_runtime.rollouts.function.shared_process import HANG_SECONDS, SharedProcess
from grpo_runtime.rollouts.function.transcript import Transcript
from grpo_runtime.rollouts.function.tries import PAUSES_SECONDS, Sample, Tries
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.function.worker import FIELD, worker_config
from grpo_runtime.rollouts.interface import Engines, FunctionFailedError, GenerateRequest, Rollout

T = TypeVar("T")

logger = logging.getLogger(__name__)


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


class RolloutFunction(SharedProcess):
    """The user's function and its process."""

    def __init__(
        self,
        options: FunctionOptions,
        *,
        decoder: CompletionDecoder,
        vocab_size: int,
        pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        program = WorkerProgram(
            module="grpo_runtime.rollouts.function.worker",
            config=worker_config(options.function, options.file, field=FIELD),
            what=f"{FIELD}: starting it",
        )
        super().__init__(program, hang_seconds=hang_seconds)
        self._pauses_seconds = pauses_seconds
        self._options = options
        self._decoder = decoder
        self._num_token_ids = min(len(decoder.tokenizer), vocab_size)

    def over(self, engines: Engines) -> Source:
        """The source that makes samples with the function: each turn is a request to `engines`, which rest
        behind the last one, unless they are to stay awake."""
        make = _Turns(self, engines).make
        return Tries(self, engines, make=make, failed=_no_next_turn, pauses_seconds=self._pauses_seconds)

    def transcript(self, request: GenerateRequest) -> Transcript:
        """An empty one."""
        return Transcript(request, max_tokens=self._options.max_tokens, max_turns=self._options.max_turns)

    def conversation(self, process: FunctionProcess) -> AbstractContextManager[OpenConversation]:
        """A new one with the process, each of whose ways to the next turn has the deadline."""
        return process.conversation(timeout_seconds=self._options.timeout_seconds)

    def encode(self, what: str | list[int]) -> list[int]:
        """The tokens of what was added. Raises FunctionFailedError for ids that the tokenizer does not have,
        and for text that is not Unicode."""
        if isinstance(what, str):
            try:
                what.encode()
            except UnicodeEncodeError as error:
                raise FunctionFailedError(
                    f"{FIELD}: the function added text that is not Unicode ({error}): decode what a tool "
                    "returns with errors='replace'"
                ) from error
            what = list(self._decoder.tokenizer(what, add_special_tokens=False)["input_ids"])
        for token in what:
            if not 0 <= token < self._num_token_ids:
                raise FunctionFailedError(
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


class _Turns:
    """Completions that are made turn by turn."""

    def __init__(self, function: RolloutFunction, engines: Engines) -> None:
        self._function = function
        self._sampler = TurnSampler(engines)

    async def make(self, sample: Sample, process: FunctionProcess, finish: Callable[[Rollout], None]) -> None:
        """One completion. It is finished before the function has ended where that is cut."""
        transcript = self._function.transcript(sample.request)
        with self._function.conversation(process) as conversation:
            with self._sampler.joined() as number:
                said = await _in_time(conversation.begin(_given(sample)), sample)
                while (turn := self._next_turn(said, transcript, sample)) is not None:
                    rollout = await self._sampler.sample(number, turn)
                    transcript.take(rollout)
                    said = await _in_time(conversation.resume(self._function.turn(rollout)), sample)
            finish(_finished(transcript, sample))
            if conversation.is_open:
                await _in_time(conversation.cut(), sample)

    def _next_turn(self, said: Line, transcript: Transcript, sample: Sample) -> GenerateRequest | None:
        """What the engines are asked for when the function has said this; None where the completion is
        finished. Raises FunctionFailedError when the function raised, or has written over the protocol."""
        if "error" in said:
            raise _failure(said, sample)
        added, max_tokens = said.get("added"), said.get("max_tokens")
        if not _is_added(added) or type(max_tokens) not in (int, type(None)):
            raise _no_next_turn(sample.where, WorkerFailedError(f"its process wrote {shortened(said)}"))
        for each in added:
            transcript.add(self._function.encode(each))
        return None if said.get("is_done") else transcript.next_turn(max_tokens)


async def _in_time(way: Awaitable[T], sample: Sample) -> T:
    """The way of a conversation to its next line. Raises FunctionFailedError when that is late."""
    try:
        return await way
    except WorkerFailedError as error:
        raise _no_next_turn(sample.where, error) from error


def _is_added(found: object) -> TypeGuard[list[str | list[int]]]:
    """Whether this is what a conversation adds before a turn."""
    return isinstance(found, list) and all(
        isinstance(each, str) or (isinstance(each, list) and all(type(token) is int for token in each))
        for each in found
    )


def _no_next_turn(where: str, error: WorkerFailedError) -> FunctionFailedError:
    return FunctionFailedError(
        f"{FIELD}: the function did not come to its next turn {where}: {error}: give what it waits for a "
        "deadline, or raise timeoutSeconds"
    )


def _given(sample: Sample) -> dict[str, Any]:
    return {
        "prompt": sample.group.prompt.content,
        "prompt_ids": sample.request.prompt_ids,
        "columns": sample.group.prompt.columns,
        "sample_index": sample.place,
        "seed": sample.request.seed,
    }


def _finished(transcript: Transcript, sample: Sample) -> Rollout:
    if transcript.num_turns == 0:
        raise FunctionFailedError(
            f"{FIELD}: the function has sampled no turn {sample.where} before it ended or "
            "sampling.maxTokens was reached: call conversation.sample first"
        )
    return transcript.rollout()


def _failure(said: Line, sample: Sample) -> FunctionFailedError:
    sentence, trace = failure_in(said)
    logger.warning("%s: the function raised %s\n%s", FIELD, sentence, trace)
    return FunctionFailedError(
        f"{FIELD}: the function raised {sentence} {sample.where}: catch what a tool may raise"
    )
