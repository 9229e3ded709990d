"""A run in this process: the coordinator over a policy that never changes, and fakes that record what they
get."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rollout.interface import (
    GenerateRequest,
    Generation,
    Probe,
    Rollout,
    SyncReport,
    VersionSpan,
)
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.commands import Command
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.trainer.scoring import Scores
from grpo_runtime.trainer.stop import StopRequestedError
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
        self.is_slow = True
        self.num_waits = 0
        self.commands: list[Command] = []
        self._stops_at = stops_at

    async def attend(self, work: Awaitable[Any], *, on_tick: Callable[[], None]) -> Any:
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

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        self.batches[step] = batch
        return {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-3}


class RecordingEngines:
    """The same completion for every request, with the weights of `sampled_with`, else with the newest."""

    def __init__(self, *, sampled_with: PolicyVersion | None = None) -> None:
        self.versions: list[PolicyVersion] = []
        self.probes: list[Probe | None] = []
        self.requests: list[Sequence[GenerateRequest]] = []
        self._sampled_with = sampled_with

    def counts(self) -> EngineCounts:
        return EngineCounts(desired=1, known=1, current=int(bool(self.versions)))

    def generation(self) -> None:
        return None

    async def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> SyncReport:
        self.versions.append(version)
        self.probes.append(probe)
        return SyncReport(version=version, synced=("fake",), failed={}, num_bytes=0)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Rollout]:
        self.requests.append(requests)
        version = self._sampled_with or self.versions[-1]
        span = VersionSpan(version, 0, COMPLETION_TOKENS)
        ids, logprobs = (5, 6, 7), (-4.6,) * COMPLETION_TOKENS
        return [Rollout(r.prompt_ids, ids, logprobs, (span,), True, "fake") for r in requests]


class FixedScorer:
    """The same rewards [B, F] in every step."""

    def __init__(self, run: RunConfig, rewards: torch.Tensor, metrics: Mapping[str, float]) -> None:
        self.names = [reward.name for reward in run.rewards]
        self.prompts: list[Sequence[Prompt]] = []
        self._scores = Scores(rewards=rewards, metrics=metrics)

    async def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, step: int) -> Scores:
        self.prompts.append(prompts)
        return self._scores


class RecordingReporter:
    """`steps` are the reports, by step from 1."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.checkpoint_step: int | None = None
        self.num_current: list[int] = []

    def report_waiting(self, engines: EngineCounts, *, generation: Generation | None = None) -> None:
        assert engines.known == 1
        self.num_current.append(engines.current)

    def finished_step(self, values: Mapping[str, float], *, step: int, **rest: Any) -> None:
        self.steps[step] = {**values, **rest}

    def saved(self, step: int | None) -> None:
        self.checkpoint_step = step


class RecordingSaver:
    """Checkpoints in memory; the model cannot be exported when `is_full`."""

    def __init__(self, *, is_full: bool = False) -> None:
        self._is_full = is_full
        self.states: list[RunState] = []
        self.newest_step: int | None = None
        self.is_exported = False

    def is_new(self, state: RunState) -> bool:
        return state.step not in (0, self.newest_step)

    def save(self, state: RunState) -> None:
        self.states.append(state)
        self.newest_step = state.step

    def export(self) -> None:
        if self._is_full:
            raise OSError("no space left")
        self.is_exported = True


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
        sampled_with: PolicyVersion | None = None,
        is_full: bool = False,
    ) -> None:
        write_tiny_model(folder)
        model, tokenizer = load_policy(folder, dtype=MASTER_DTYPE), load_tokenizer(folder)
        policy = Policy(model, temperature=run.sampling.temperature, dtype=run.chosen_dtype)
        self.ranks = OneRank(stops_at=stops_at)
        self.learner = RecordingLearner()
        self.engines = RecordingEngines(sampled_with=sampled_with)
        self.sampler = PromptSampler(PROMPTS, seed=run.algorithm.seed, is_shuffled=run.dataset.shuffle)
        self.scorer = FixedScorer(run, torch.tensor([list(row) for row in rewards]), metrics or {})
        self.reporter = RecordingReporter()
        self.saver = RecordingSaver(is_full=is_full)
        parts: dict[str, Any] = {
            "ranks": self.ranks,
            "strategy": ReadOnlyStrategy(policy),
            "learner": self.learner,
            "engines": self.engines,
            "sampler": self.sampler,
            "scorer": self.scorer,
            "reporter": self.reporter,
            "saver": self.saver,
        }
        self._coordinator = Coordinator(run_config=run, attempt=3, tokenizer=tokenizer, **parts)

    async def train(self, state: RunState | None = None) -> bool:
        """Whether every step from `state` on was done."""
        return await self._coordinator.train(state or RunState())
