"""Makes completions with the user's agent: rank 0's side.

Each completion is an episode with a session of the gateway. What the agent asked there, and was answered, is
what is trained, whatever its client made of it.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from grpo_runtime.data.seeds import turn_seed
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.session import Limits, Session
from grpo_runtime.process.line_worker import WorkerFailedError, WorkerProgram, failure_in, shortened
from grpo_runtime.rollouts.agents.kinds import AgentCode, AgentKind
from grpo_runtime.rollouts.agents.result import MAX_QUOTED_CHARACTERS
from grpo_runtime.rollouts.collect import Source
from grpo_runtime.rollouts.function.function_process import FunctionProcess, Line, OpenConversation
from grpo_runtime.rollouts.function.shared_process import HANG_SECONDS, SharedProcess, blocked_message
from grpo_runtime.rollouts.function.tries import ALL, PAUSES_SECONDS, Part, Sample, Tries
from grpo_runtime.rollouts.function.worker import worker_config
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    Engines,
    EpisodeFailure,
    FunctionFailedError,
    Rollout,
)

logger = logging.getLogger(__name__)

_MOST_FAILURES = 10**6
"""Of a kind in an episode. Its process may write any number."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """An environment."""

    name: str
    kind: AgentKind
    code: AgentCode
    """What plays its episodes."""
    limits: Limits
    """What one episode may use."""
    columns: tuple[str, ...] | None = None
    """The columns of the data beside the prompt, which are arguments of the agent; None where they are not
    known."""

    @property
    def field(self) -> str:
        """Which errors name."""
        return f"environment {self.name}"


class Agent(SharedProcess):
    """The user's agent and its process."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        code = options.code
        program = WorkerProgram(
            module=options.kind.module,
            config=worker_config(
                code.function, code.file, field=options.field, columns=options.columns, **code.more
            ),
            what=f"{options.field}: starting its agent",
            environment=code.environment,
        )
        super().__init__(program, hang_seconds=hang_seconds)
        self.options = options
        self._pauses_seconds = pauses_seconds
        at_a_time = options.kind.at_a_time
        self._places = nullcontext() if at_a_time is None else asyncio.Semaphore(at_a_time)

    def over(self, engines: Engines, gateway: Gateway, *, url: str, part: Part = ALL) -> Source:
        """The source that makes a part of all samples with the agent, which calls the gateway at `url`. The
        gateway samples with the same engines, which rest behind the last one, unless they are to stay
        awake."""
        return Tries(
            self,
            engines,
            make=_Episodes(
                self.options, gateway, url=url, hang_seconds=self.hang_seconds, places=self._places
            ).make,
            failed=self._ended,
            pauses_seconds=self._pauses_seconds,
            part=part,
        )

    def _ended(self, where: str, error: WorkerFailedError) -> FunctionFailedError:
        return FunctionFailedError(f"{self.options.field}: the agent failed {where}: {error}")


def returned_by(said: Line) -> float | None:
    """The reward with which an episode has ended; None where it has none, also where its agent raised. What
    else its process says of it, such as tokens, is not read: the gateway's own record is trained.

    Raises WorkerFailedError for what no agent can end with: its code has written over the protocol.
    """
    if "error" in said:
        return None
    reward = said.get("reward")
    is_number = type(reward) is float and math.isfinite(reward)
    if said.get("is_done") is not True or not (reward is None or is_number):
        raise WorkerFailedError(f"its process wrote {shortened(said)}")
    return reward


def failures_in(said: Line) -> dict[str, int]:
    """How often something failed in an episode that has ended, by EpisodeFailure, as its process counts it.
    Raises WorkerFailedError as `returned_by`."""
    found = said.get("failures", {})
    kinds = [kind.value for kind in EpisodeFailure]
    if isinstance(found, dict) and all(
        kind in kinds and type(num) is int and 0 <= num <= _MOST_FAILURES for kind, num in found.items()
    ):
        return {kind: num for kind, num in found.items() if num}
    raise WorkerFailedError(f"its process wrote {shortened(said)}")


def output_in(said: Line) -> str:
    """The end of what a program wrote; empty where none made the episode. Raises WorkerFailedError as
    `returned_by`."""
    found = said.get("output", "")
    if isinstance(found, str):
        return found
    raise WorkerFailedError(f"its process wrote {shortened(said)}")


class _Episodes:
    """Episodes, each with a session."""

    def __init__(
        self,
        options: AgentOptions,
        gateway: Gateway,
        *,
        url: str,
        hang_seconds: float,
        places: AbstractAsyncContextManager[None],
    ) -> None:
        self._options = options
        self._gateway = gateway
        self._url = url
        self._hang_seconds = hang_seconds
        self._places = places

    async def make(self, sample: Sample, process: FunctionProcess, finish: Callable[[Rollout], None]) -> None:
        """One episode, once there is a place for it. It is cut where its agent came to a limit, whatever that
        raised there, and where its time is over. Raises FunctionFailedError where the agent failed
        otherwise."""
        async with self._places:
            await self._make(sample, process, finish)

    async def _make(
        self, sample: Sample, process: FunctionProcess, finish: Callable[[Rollout], None]
    ) -> None:
        request, options = sample.request, self._options
        session = Session(
            self._gateway.model, request.seed, limits=options.limits, is_evaluation=request.is_evaluation
        )

        # what helps the agent, such as a judge, with seeds of its own
        seed = turn_seed(request.seed, turn=-1)
        untrained = replace(session, seed=seed, is_trained=False, overridden={})

        try:
            # its deadline is the session's
            with process.conversation(timeout_seconds=None) as episode:

                async def play(key: str) -> Line:
                    async with self._gateway.beside(key, untrained) as untrained_key:
                        keys = {"key": key, "untrained_key": untrained_key}
                        return await episode.begin({"url": self._url, **keys, "task": _task(sample)})

                said = await self._gateway.play(session, play)
                if said is None:
                    said = await self._late(session, sample, process, episode)
            returned, failures, output = returned_by(said), failures_in(said), output_in(said)
        except WorkerFailedError as error:
            raise self._failure(f"{error}", sample) from error
        if "error" in said and not (session.is_cut or untrained.is_cut):
            sentence, trace = failure_in(said)
            # a program has no traceback, but an end of its output
            what = f"it raised {sentence}" if "traceback" in said else sentence
            logger.warning("%s: %s\n%s", options.field, what, trace)
            raise self._failure(what, sample)
        is_cut = session.is_cut or "error" in said
        trajectory = self._trajectory(session, said, sample, output=output if is_cut else "")
        of_rank_0 = {
            EpisodeFailure.LIMIT.value: int(is_cut),
            EpisodeFailure.ENVIRONMENT.value: sample.num_failures,
            EpisodeFailure.POLICY.value: session.num_unreadable_calls,
        }
        failures |= {kind: failures.get(kind, 0) + num for kind, num in of_rank_0.items() if num}
        rollout = self._rollout(session, sample, is_cut=is_cut)
        calls = AgentCalls(
            environment=self._options.name,
            turns=session.turns,
            overridden=session.overridden,
            failures=failures,
        )
        finish(replace(rollout, returned=returned, trajectory=trajectory, calls=calls))

    def _trajectory(self, session: Session, said: Line, sample: Sample, *, output: str) -> dict[str, Any]:
        trajectory = {"chats": session.chats, "state": said.get("state")}
        if output:
            trajectory["output"] = output
        try:
            json.dumps(trajectory, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise self._failure(f"its chats, or its state, are no JSON: {error}", sample) from error
        return trajectory

    async def _late(
        self, session: Session, sample: Sample, process: FunctionProcess, episode: OpenConversation
    ) -> Line:
        """How an episode ends whose time is over: with no reward of its agent. Raises FunctionFailedError
        where it has nothing to train, and where its process hangs, which may be another episode's fault."""
        if await process.hangs(after_seconds=self._hang_seconds):
            raise self._failure(blocked_message(self._hang_seconds), sample)
        said = await self._last_output(episode)
        if not session.record.num_sequences:
            what = f"it got no answer within limits.seconds ({self._options.limits.seconds:g})"
            wrote = output_in(said)[-MAX_QUOTED_CHARACTERS:]
            raise self._failure(f"{what}, and wrote: {wrote}" if wrote else what, sample)
        return {"is_done": True, **said}

    async def _last_output(self, episode: OpenConversation) -> Line:
        """What the program of a late episode has written until it was ended; nothing where it is none, or
        does not end."""
        try:
            async with asyncio.timeout(self._hang_seconds):
                said = await episode.cut()
        except TimeoutError:
            said = {}
        return {"output": said["output"]} if "output" in said else {}

    def _rollout(self, session: Session, sample: Sample, *, is_cut: bool) -> Rollout:
        sequences = session.record.rollouts()
        if not sequences:
            what, fix = "it ended without a call", "call client.chat.completions.create first"
            if session.is_cut:
                what, fix = "its prompt is too long", "raise limits.promptTokens or engine.maxModelLen"
            raise self._failure(f"{what}: {fix}", sample)
        if is_cut:
            sequences = [replace(sequence, is_terminated=False) for sequence in sequences]
        return replace(sequences[0], branches=tuple(sequences[1:]))

    def _failure(self, what: str, sample: Sample) -> FunctionFailedError:
        return FunctionFailedError(f"{self._options.field}: the agent failed {sample.where}: {what}")


def _task(sample: Sample) -> dict[str, Any]:
    prompt = sample.group.prompt
    return {
        "prompt": prompt.content,
        "columns": prompt.columns,
        "sample_index": sample.place,
        "seed": sample.request.seed,
    }
