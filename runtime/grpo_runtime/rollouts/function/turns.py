"""Makes completions with the user's function: rank 0's side."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.process.line_worker import LineWorker, WorkerFailedError
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.collect import Source, Take
from grpo_runtime.rollouts.function.transcript import Transcript
from grpo_runtime.rollouts.function.worker import FIELD
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, GenerateRequest, Rollout

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (5.0, 30.0)
"""Before each other try to make what is not finished: what the function waits for may come back."""


class FunctionFailedError(UserError):
    """The function was late, raised, or ended its process. Another try may succeed."""


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """The user's function: exactly one of `function` and `file` is set."""

    function: str | None
    """`module:attribute`, importable where the trainer runs."""
    file: FunctionFile | None
    timeout_seconds: float
    """Time limit of one round: the user's code between two turns, of all completions together."""
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
    ) -> None:
        self.pauses_seconds = pauses_seconds
        self._options = options
        self._decoder = decoder
        self._num_token_ids = min(len(decoder.tokenizer), vocab_size)
        self._worker = LineWorker(
            "grpo_runtime.rollouts.function.worker", worker_config(options), what=f"{FIELD}: starting it"
        )

    async def __aenter__(self) -> "RolloutFunction":
        await self._worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close()

    def over(self, engines: Engines) -> Source:
        """The source that makes samples with the function: each turn is a request to `engines`, which rest
        behind the last one, unless they are to stay awake."""
        return _Turns(self, engines)

    def transcript(self, request: GenerateRequest) -> Transcript:
        """An empty one."""
        return Transcript(request, max_tokens=self._options.max_tokens, max_turns=self._options.max_turns)

    async def ask(self, message: Mapping[str, Any], *, step: int) -> list[dict[str, Any]]:
        """What every completion asks for after a round. Raises FunctionFailedError when the round misses its
        deadline or the process dies, and UserError when its next process does not find the function."""
        line = json.dumps(message).encode() + b"\n"
        try:
            reply = await self._worker.ask(line, timeout_seconds=self._options.timeout_seconds)
        except WorkerFailedError as error:
            raise FunctionFailedError(
                f"{FIELD}: the function did not come to the next turns in step {step + 1}: {error}: give "
                "what it waits for a deadline, or raise timeoutSeconds"
            ) from error
        asks: list[dict[str, Any]] = reply["asks"]
        return asks

    async def end_process(self) -> None:
        """End the process with all that the function has begun; the next call starts another one."""
        await self._worker.close()

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
    """All completions of a call, in rounds: each turn is one call of the engines, for all that want one."""

    def __init__(self, function: RolloutFunction, engines: Engines) -> None:
        self._function = function
        self._engines = engines

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss. Where the function fails, what is not finished begins anew
        with its first turn."""
        left = dict(enumerate(_Sample(group, place) for group in groups for place in group.missing))

        def finish(index: int, rollout: Rollout) -> None:
            sample = left.pop(index)
            take(sample.group, sample.place, rollout)

        num_failures = 0
        while left:
            try:
                await self._make(dict(left), finish=finish)
            except FunctionFailedError as error:
                num_failures += 1
                await self._recover(error, num_failures, num_left=len(left))
        if not stays_awake:
            await self._engines.rest()

    async def _recover(self, error: FunctionFailedError, num_failures: int, *, num_left: int) -> None:
        """Make ready for another try, or raise the error when there is none."""
        pauses = self._function.pauses_seconds
        # with what else the function has begun, which must not continue in the next try
        await self._function.end_process()
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

    async def _make(self, samples: Mapping[int, _Sample], *, finish: Callable[[int, Rollout], None]) -> None:
        """The completions of `samples`, by their numbers. They are of one step."""
        step = next(iter(samples.values())).group.step
        transcripts = {index: self._function.transcript(one.request) for index, one in samples.items()}
        asks = await self._function.ask({"begin": _given(samples)}, step=step)
        while asks:
            turns: dict[int, GenerateRequest] = {}
            cut, failed = [], []
            for ask in asks:
                index, transcript = ask["rollout"], transcripts[ask["rollout"]]
                if "error" in ask:
                    failed.append(ask)
                    continue
                for added in ask["added"]:
                    transcript.add(self._function.encode(added))
                turn = None if ask["is_done"] else transcript.next_turn(ask["max_tokens"])
                if turn is not None:
                    turns[index] = turn
                    continue
                finish(index, _finished(transcript, samples[index]))
                if not ask["is_done"]:
                    cut.append(index)
            if failed:
                raise _failure(failed[0], samples[failed[0]["rollout"]])
            replies = [{"rollout": index, "turn": None} for index in cut]
            if turns:
                sampled = await self._engines.generate(list(turns.values()), stays_awake=True)
                for index, rollout in zip(turns, sampled, strict=True):
                    transcripts[index].take(rollout)
                    replies.append({"rollout": index, "turn": self._function.turn(rollout)})
            asks = await self._function.ask({"replies": replies}, step=step) if replies else []


def _given(samples: Mapping[int, _Sample]) -> list[dict[str, Any]]:
    return [
        {
            "rollout": index,
            "prompt": sample.group.prompt.content,
            "prompt_ids": sample.request.prompt_ids,
            "columns": sample.group.prompt.columns,
            "sample_index": sample.place,
            "seed": sample.request.seed,
        }
        for index, sample in samples.items()
    ]


def _finished(transcript: Transcript, sample: _Sample) -> Rollout:
    if transcript.num_turns == 0:
        raise UserError(
            f"{FIELD}: the function has sampled no turn for {sample.row} before it ended or "
            "sampling.maxTokens was reached: call conversation.sample first"
        )
    return transcript.rollout()


def _failure(ask: Mapping[str, Any], sample: _Sample) -> FunctionFailedError:
    logger.warning("%s: the function raised %s\n%s", FIELD, ask["error"], ask["traceback"])
    return FunctionFailedError(
        f"{FIELD}: the function raised {ask['error']} for {sample.row} in step {sample.group.step + 1}: "
        "catch what a tool may raise"
    )


def worker_config(options: FunctionOptions) -> str:
    """The first argument of the worker, as JSON."""
    file = None if options.file is None else asdict(options.file)
    return json.dumps({"function": options.function, "file": file}, default=str)
