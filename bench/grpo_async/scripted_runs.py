"""A run of the product's training loop over scripted engines and a trainer that takes a stated time. Prompts,
seeds, groups, staleness, dispatch and the order of a step are the product's; there are no weights, no journal
and no checkpoints.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_async.cases import Case, Way
from grpo_async.scripted_engines import ScriptedEngines
from grpo_async.steps import Logged, Run
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.process.background import LoopThread
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.collect import EngineSource
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.journal.journal import NoJournal
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.learner import LearnerState
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.training_prompts import load_training_prompts


def train_scripted(case: Case, way: Way, *, seed: int, ranks: Ranks) -> Run:
    """One run of a case with scripted engines."""
    run_config = resolve(parse_job(case.job(way, seed=seed)), is_one_machine=True)
    with TemporaryDirectory(prefix="grpo-bench-") as folder:
        return asyncio.run(_train(case, run_config, folder=Path(folder), ranks=ranks))


def alone() -> Ranks:
    """The ranks of a process that trains alone; torch can be asked for them once."""
    return Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())


async def _train(case: Case, run_config: RunConfig, *, folder: Path, ranks: Ranks) -> Run:
    scripted = case.scripted
    assert scripted is not None
    write_tiny_model(folder)
    decoder = CompletionDecoder.of(load_tokenizer(folder))
    found = load_training_prompts(
        run_config, volumes_dir=folder, decoder=decoder, vocab_size=len(decoder.tokenizer)
    )
    engines = ScriptedEngines(scripted, run_config)
    reporter = _Reporter()
    parts: dict[str, Any] = {
        "ranks": ranks,
        "strategy": _NoWeights(),
        "learner": _Learner(scripted.train_seconds),
        "engines": engines,
        "sampler": PromptSampler(found.prompts, seed=run_config.algorithm.seed, is_shuffled=True),
        "scorer": _Scorer(),
        "reporter": reporter,
        "saver": _NoSaver(),
        "journal": NoJournal(),
        "decoder": decoder,
        "source": EngineSource(engines),
    }
    async with LoopThread("rollouts") as thread:
        coordinator = Coordinator(run_config=run_config, attempt=1, thread=thread, **parts)
        await coordinator.train(RunState())
    return Run.of(reporter.steps)


class _NoWeights:
    """The policy: scripted engines ask for nothing of it."""

    def engine_weights(self) -> None:
        return None


class _Learner:
    """Blocks its thread for as long as a training step is to take."""

    def __init__(self, seconds: float) -> None:
        self.state = LearnerState()
        self._seconds = seconds

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        time.sleep(self._seconds)
        return {"loss": 0.0, "grad_norm": 1.0}


class _Scorer:
    """Every second completion of a group is right."""

    names = ("scripted",)

    async def score(self, group: Group) -> tuple[Column, ...]:
        return (Column(values=[float(place % 2) for place in range(len(group.requests))]),)

    def judge(self, groups: Sequence[Group], *, step: int) -> None:
        """Nothing fails."""

    def metrics(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {}

    def open_calls(self) -> list[Any]:
        return []

    def name_of(self, group: Group) -> str:
        return f"step {group.step + 1}"


class _Reporter:
    """Keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[Logged] = []

    def begins_round(self, *, needs_engines: bool) -> None:
        """Nobody looks."""

    def report_waiting(self, *arguments: Any, **named: Any) -> None:
        """Nobody looks."""

    def report_bytes(self, message: str, *, num_bytes: int) -> None:
        """Nobody looks."""

    def report_checkpoint(self, step: int | None, *, seconds: float | None = None) -> None:
        """Nobody looks."""

    def finished_step(self, values: Mapping[str, float], **rest: Any) -> None:
        self.steps.append(Logged(time=time.monotonic(), values=dict(values)))


class _NoSaver:
    """Nothing is saved."""

    is_saving = False
    newest_step: int | None = None
    newest_seconds: float | None = None
    num_bytes_written = 0

    def is_new(self, state: RunState) -> bool:
        return False

    def poll(self) -> bool:
        return False

    def take_metrics(self) -> dict[str, float]:
        return {}

    def export(self) -> "Future[None]":
        written: Future[None] = Future()
        written.set_result(None)
        return written
