"""A run in this process: the coordinator over a policy that never changes, and fakes that record what they
get."""

import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from grpo_api.contract.progress import EngineCounts, EngineNote
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.export.upload import ModelUploads
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.process.background import LoopThread
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.report.waiting import without_weights_message
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import OpenCalls
from grpo_runtime.rollouts.collect import EngineSource
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Rollout,
    SyncReport,
    VersionSpan,
)
from grpo_runtime.rollouts.journal.journal import NoJournal
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.distributed import Command, StopRequestedError
from grpo_runtime.trainer.evaluation import Evaluation
from grpo_runtime.trainer.learner import LearnerState
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.weight_sync.source import WeightSource

PROMPTS = tuple(
    Prompt(index=index, content=f"{letter}=", columns={"answer": letter * 4})
    for index, letter in enumerate("abcde")
)
PROMPT_TOKENS, COMPLETION_TOKENS = 2, 3


class OneRank:
    """Rank 0 of 1. What it waits for comes before it reports, unless it `is_slow`.

    At wait number `stops_at`, counted from 1, it is asked to stop. `commands` are those announced.
    """

    def __init__(self, *, stops_at: int | None = None) -> None:
        self.position = OwnPosition()
        self.is_slow = True
        self.num_waits = 0
        self.commands: list[Command] = []
        self._stops_at = stops_at

    async def attend(
        self, work: Awaitable[Any], *, on_tick: Callable[[], None], ends_on_stop: bool = True
    ) -> Any:
        if not ends_on_stop:
            on_tick()
            return await work
        self.num_waits += 1
        if self.is_slow:
            on_tick()
        found = await work
        if self.num_waits == self._stops_at:
            raise StopRequestedError
        return found

    def announce(self, command: Command) -> None:
        assert not self.commands or self.commands[-1] not in (Command.DONE, Command.STOP)
        self.commands.append(command)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class ReadOnlyStrategy:
    """The policy in this process alone: the coordinator only reads it."""

    is_sharded = False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.device = policy.device
        self.vocab_size = int(policy.model.config.vocab_size)
        self.probe_logprobs = policy.logprobs_at_one
        self._weights = PolicyWeights(policy)

    def engine_weights(self) -> WeightSource:
        return self._weights


class RecordingLearner:
    """Learns nothing; `batches` are those it got, by step."""

    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.state = LearnerState()
        self.grad_norm = 1.0

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        self.batches[step] = batch
        return {"loss": 0.5, "grad_norm": self.grad_norm, "learning_rate": 1e-3}


class RecordingEngines:
    """The same completion for every request, with the newest weights. Those
    whose places in the step are in `cut` have reached the token limit."""

    is_concurrent = False

    def __init__(self, *, cut: Collection[int] = ()) -> None:
        self.versions: list[PolicyVersion] = []
        self.probes: list[Probe | None] = []
        self.requests: list[Sequence[GenerateRequest]] = []
        self.failed: Mapping[str, FailedSyncs] = {}
        self._cut = cut

    def counts(self) -> EngineCounts:
        return EngineCounts(desired=1, known=1, current=int(bool(self.versions)))

    def generation(self) -> None:
        return None

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        return self.failed

    def take_idle_seconds(self) -> Mapping[str, float]:
        return {"fake": 0.25} if self.versions else {}

    def take_recomputed(self) -> None:
        return None

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        self.versions.append(version)
        self.probes.append(probe)
        return SyncReport(version=version, synced=("fake",), failed={}, num_bytes=0)

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        self.requests.append(requests)
        version = self.versions[-1]
        span = VersionSpan(version, 0, COMPLETION_TOKENS)
        ids, logprobs = (5, 6, 7), (-4.6,) * COMPLETION_TOKENS
        rollouts = [
            Rollout(request.prompt_ids, ids, logprobs, (span,), place not in self._cut, "fake")
            for place, request in enumerate(requests)
        ]
        if on_finished is not None:
            for place, rollout in enumerate(rollouts):
                on_finished(place, rollout)
        return rollouts

    async def rest(self) -> None:
        """They have nothing to give back."""


class FixedScorer:
    """The same rewards [B, F] in every step, by the place of a group in the first round of it; `score` of
    `evaluations` says what one of an evaluation gets. `scored` are the groups, in their order."""

    def __init__(
        self,
        run: RunConfig,
        rewards: torch.Tensor,
        metrics: Mapping[str, float],
        *,
        evaluations: Callable[[Group], float | None] | None = None,
    ) -> None:
        self.names = [reward.name for reward in run.rewards]
        self.scored: list[Group] = []
        self._values = [[None if math.isnan(value) else value for value in row] for row in rewards.tolist()]
        self._metrics = metrics
        self._evaluations = evaluations

    async def score(self, group: Group) -> tuple[Column, ...]:
        size = len(group.requests)
        if group.is_evaluation:
            assert self._evaluations is not None
            return (Column(values=[self._evaluations(group)] * size),)
        self.scored.append(group)
        first = group.number * size % len(self._values)
        rows = self._values[first : first + size][: len(group.completions)]
        return tuple(Column(values=list(column)) for column in zip(*rows, strict=True))

    def judge(self, groups: Sequence[Group], *, step: int) -> None:
        assert all(group.is_scored for group in groups)

    def metrics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return self._metrics

    def open_calls(self) -> list[OpenCalls]:
        return []

    def name_of(self, group: Group) -> str:
        return f"evaluation {group.step}" if group.is_evaluation else f"step {group.step}"


class RecordingReporter:
    """`steps` are the reports, by step from 1."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.checkpoint_step: int | None = None
        self.num_current: list[int] = []
        self.waits: list[str] = []
        self.notes: list[str] = []
        self.moved: list[tuple[str, int]] = []

    def report_waiting(
        self,
        engines: EngineCounts,
        *,
        generation: Generation | None = None,
        waits_for: str = "",
        without_weights: Sequence[EngineNote] = (),
    ) -> None:
        assert engines.known == 1
        self.waits.append(waits_for)
        self.notes.append(without_weights_message(without_weights))
        self.num_current.append(engines.current)

    def begins_round(self, *, needs_engines: bool) -> None:
        """A run here has no journal, so that every round needs them."""
        assert needs_engines

    def finished_step(self, values: Mapping[str, float], *, step: int, **rest: Any) -> None:
        self.steps[step] = {**values, **rest}

    def report_bytes(self, message: str, *, num_bytes: int) -> None:
        self.moved.append((message, num_bytes))

    def report_checkpoint(self, step: int | None, *, seconds: float | None = None) -> None:
        self.checkpoint_step = step
        self.checkpoint_seconds = seconds


class RecordingSaver:
    """Checkpoints in memory; the model cannot be exported when `is_full`.

    The save of a step is in flight for `polls_until_committed` polls, or until somebody waits for it. That of
    `fails_at` ends with an OSError. `waits` are the steps whose saves were waited for.
    """

    def __init__(
        self, *, is_full: bool = False, polls_until_committed: int = 0, fails_at: int | None = None
    ) -> None:
        self._is_full = is_full
        self._polls_until_committed = polls_until_committed
        self._fails_at = fails_at
        self._polls_left = 0
        self._in_flight: int | None = None
        self.states: list[RunState] = []
        self.waits: list[int] = []
        self.newest_step: int | None = None
        self.newest_seconds: float | None = None
        self.is_exported = False
        self.num_bytes_written = 0

    @property
    def is_saving(self) -> bool:
        return self._in_flight is not None

    def is_new(self, state: RunState) -> bool:
        return state.step not in (0, self.newest_step, self._in_flight)

    def save(self, state: RunState) -> None:
        assert not self.is_saving, "two saves were in flight"
        self.states.append(state)
        self._in_flight, self._polls_left = state.step, self._polls_until_committed

    def poll(self) -> bool:
        self._polls_left -= 1
        if self._in_flight is None or self._polls_left >= 0:
            return False
        self.newest_step, self._in_flight = self._in_flight, None
        if self.newest_step == self._fails_at:
            raise OSError("the volume went away")
        self.newest_seconds = 0.5
        return True

    async def wait(self) -> None:
        assert self._in_flight is not None
        self.waits.append(self._in_flight)
        self._polls_left = 0

    def take_metrics(self) -> dict[str, float]:
        return {} if self.newest_seconds is None else {"checkpoint/seconds": self.newest_seconds}

    def export(self) -> "Future[None]":
        written: Future[None] = Future()
        self.num_bytes_written += 100
        if self._is_full:
            written.set_exception(OSError("no space left"))
        else:
            self.is_exported = True
            written.set_result(None)
        return written


class FakeRun:
    """A run of `run` with `rewards`, a row for each completion of a step, a column for each function."""

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        *,
        rewards: Iterable[Iterable[float]],
        metrics: Mapping[str, float] | None = None,
        stops_at: int | None = None,
        cut: Collection[int] = (),
        is_full: bool = False,
        saver: RecordingSaver | None = None,
        uploads: ModelUploads | None = None,
        evaluation: Evaluation | None = None,
        evaluations: Callable[[Group], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        source: Callable[[Any], Any] = EngineSource,
    ) -> None:
        """`source` makes the samples with the engines."""
        self._source = source
        write_tiny_model(folder)
        model, tokenizer = load_policy(folder, dtype=MASTER_DTYPE), load_tokenizer(folder)
        policy = Policy(model, temperature=run.sampling.temperature, dtype=run.model.dtype)
        self.ranks = OneRank(stops_at=stops_at)
        self.learner = RecordingLearner()
        self.engines = RecordingEngines(cut=cut)
        self.sampler = PromptSampler(PROMPTS, seed=run.algorithm.seed, is_shuffled=run.dataset.shuffle)
        self.scorer = FixedScorer(
            run, torch.tensor([list(row) for row in rewards]), metrics or {}, evaluations=evaluations
        )
        self.reporter = RecordingReporter()
        self.saver = saver or RecordingSaver(is_full=is_full)
        parts: dict[str, Any] = {
            "ranks": self.ranks,
            "strategy": ReadOnlyStrategy(policy),
            "learner": self.learner,
            "engines": self.engines,
            "sampler": self.sampler,
            "scorer": self.scorer,
            "reporter": self.reporter,
            "saver": self.saver,
            **({"uploads": uploads} if uploads else {}),
            "journal": NoJournal(),
            "evaluation": evaluation,
            "clock": clock,
        }
        self._parts = {"run_config": run, "attempt": 3, "decoder": CompletionDecoder.of(tokenizer), **parts}

    async def train(self, state: RunState | None = None) -> bool:
        """Whether every step from `state` on was done."""
        source = self._source(self.engines)
        async with LoopThread("rollouts") as thread:
            coordinator = Coordinator(**self._parts, source=source, thread=thread)
            return await coordinator.train(state or RunState())
