"""Which completions the steps of asynchronous training are trained on, where some take longer than steps do.
The stream of a run is the real one; engines and trainer only take time, and that is simulated."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pod_builder import run_config
from scripted_groups import SameLoop, ScriptedScorer
from simulated_time import SimulatedLoop

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec.asynchronous import TrainedOrder
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.report.phases import Stopwatch
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.rollouts.async_stream import AsyncStream
from grpo_runtime.rollouts.collect import Take
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import OnRead, Rollout, SyncReport, VersionSpan
from grpo_runtime.rollouts.journal.journal import NoJournal

T = TypeVar("T")
PAGE = Path(__file__).parents[3] / "docs/guides/asynchronous.md"
STEPS, PROMPTS_PER_STEP, GROUP_SIZE = 10, 4, 2
NUM_RUNS = 30
MAX_STALENESS = 4
TRAIN_TIME = 1.0
LONG, LONGEST, OTHERS = 8, 30, 4
"""The time of a completion is 1 to OTHERS, or of a long one LONG to LONGEST."""
TOLERANCE = 0.02


class Reporter:
    """Reports nothing."""

    def begins_round(self, *, needs_engines: bool) -> None: ...


@dataclass
class TimedSource:
    """Engines with a place for each completion. `begun` has the time that each completion takes, by the
    ordinal of its group, in the order in which they were begun."""

    lengths: Sequence[Sequence[int]]
    version: int = 0
    begun: dict[int, Sequence[int]] = field(default_factory=dict)

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        await asyncio.gather(*(self._sample(group, take) for group in groups))

    async def _sample(self, group: Group, take: Take) -> None:
        lengths = self.begun[group.number] = self.lengths[group.number]
        version = PolicyVersion(1, self.version)

        async def sample_one(sample: int, length: int) -> None:
            await asyncio.sleep(length)
            prompt_ids, span = group.requests[sample].prompt_ids, VersionSpan(version, 0, length)
            take(
                group,
                sample,
                Rollout(prompt_ids, (5,) * length, (-0.5,) * length, (span,), True, "simulated"),
            )

        await asyncio.gather(*map(sample_one, range(GROUP_SIZE), lengths))


@dataclass(frozen=True)
class Trained:
    """Times of completions: those begun, and those trained, in the order of the groups; and how many steps
    old the oldest were."""

    begun: Sequence[int]
    trained: Sequence[int]
    staleness: float


def long_and_short(seed: int) -> Sequence[Sequence[int]]:
    """The times of the completions of each group, by its ordinal: of each five prompts one has long ones."""
    draw = random.Random(seed)

    def group(*, is_long: bool) -> Sequence[int]:
        shortest, longest = (LONG, LONGEST) if is_long else (1, OTHERS)
        return [draw.randint(shortest, longest) for _ in range(GROUP_SIZE)]

    found: list[Sequence[int]] = []
    while len(found) < STEPS * PROMPTS_PER_STEP:
        long_one = draw.randrange(5)
        found += [group(is_long=place == long_one) for place in range(5)]
    return found


async def train(order: TrainedOrder, lengths: Sequence[Sequence[int]], *, tokenizer: Any) -> Trained:
    """A run of STEPS steps. Engines get the weights of each step as soon as it is trained."""
    source = TimedSource(lengths)

    async def sync(step: int, on_read: OnRead) -> SyncReport:
        on_read()
        source.version = step
        return SyncReport(version=PolicyVersion(1, step), synced=("simulated",), failed={}, num_bytes=0)

    async def attend(work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T:
        return await work

    stream = AsyncStream(
        run_config=run_config(
            algorithm={"steps": STEPS, "promptsPerStep": PROMPTS_PER_STEP, "groupSize": GROUP_SIZE},
            **{"async": {"maxStaleness": MAX_STALENESS, "order": order.value}},
        ),
        position=OwnPosition(),
        source=source,
        sampler=PromptSampler((Prompt(index=0, content="a=", columns={}),), seed=1, is_shuffled=False),
        scorer=ScriptedScorer(),  # type: ignore[arg-type]
        reporter=Reporter(),  # type: ignore[arg-type]
        journal=NoJournal(),
        tokenizer=tokenizer,
        thread=SameLoop(),  # type: ignore[arg-type]
        attend=attend,
        failures=FailuresInARow(groups_per_step=PROMPTS_PER_STEP),
        begin_sync=sync,
        generation=lambda: None,
        advantages=AdvantageOptions(group_size=GROUP_SIZE, weights=(1.0,)),
    )
    trained: list[int] = []
    staleness = 0.0
    for step in range(STEPS):
        groups = await stream.groups_of(step, watch=Stopwatch(lambda: 0.0))
        for group in groups.trained:
            trained += [len(rollout.completion_ids) for rollout in group.rollouts]  # type: ignore[union-attr]
        staleness = max(staleness, groups.metrics["async/staleness/max"])
        await asyncio.sleep(TRAIN_TIME)
    await stream.close()
    begun = [length for of_group in source.begun.values() for length in of_group]
    return Trained(begun, trained, staleness)


def run(order: TrainedOrder, seed: int, *, tokenizer: Any) -> Trained:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(train(order, long_and_short(seed), tokenizer=tokenizer))


def share_of_long(runs: Sequence[Sequence[int]], *, num_steps: int = STEPS) -> float:
    """Of the first so many steps' completions of all runs, those that are long."""
    num = num_steps * PROMPTS_PER_STEP * GROUP_SIZE
    return sum(length >= LONG for lengths in runs for length in lengths[:num]) / (num * len(runs))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def runs(tokenizer: Any) -> Callable[[TrainedOrder], Sequence[Trained]]:
    @cache
    def runs(order: TrainedOrder) -> Sequence[Trained]:
        return [run(order, seed, tokenizer=tokenizer) for seed in range(NUM_RUNS)]

    return runs


@pytest.mark.parametrize("num_steps", range(1, STEPS + 1))
def test_with_planned_any_first_steps_are_trained_on_as_many_long_completions_as_are_sampled(
    runs: Callable[[TrainedOrder], Sequence[Trained]], num_steps: int
) -> None:
    planned = runs(TrainedOrder.PLANNED)
    sampled = share_of_long([run.begun for run in planned])
    trained = share_of_long([run.trained for run in planned], num_steps=num_steps)
    assert trained == pytest.approx(sampled, abs=TOLERANCE)
    assert max(run.staleness for run in planned) <= MAX_STALENESS


def test_with_finished_the_first_steps_are_trained_on_fewer_and_the_whole_run_on_as_many(
    runs: Callable[[TrainedOrder], Sequence[Trained]],
) -> None:
    finished = runs(TrainedOrder.FINISHED)
    sampled = share_of_long([run.begun for run in finished])
    by_steps = [
        share_of_long([run.trained for run in finished], num_steps=num_steps)
        for num_steps in range(1, STEPS + 1)
    ]
    # until the first weights' prompts, of which there are enough for one step more, have to be trained
    assert max(by_steps[:MAX_STALENESS]) < 0.25 * sampled
    assert by_steps[MAX_STALENESS:] == pytest.approx([sampled] * (STEPS - MAX_STALENESS), abs=TOLERANCE)
    assert max(run.staleness for run in finished) == MAX_STALENESS


def test_the_page_says_what_each_order_was_measured_to_train(
    runs: Callable[[TrainedOrder], Sequence[Trained]],
) -> None:
    def percent(order: TrainedOrder, *, num_steps: int) -> str:
        share = share_of_long([run.trained for run in runs(order)], num_steps=num_steps)
        return f"{100 * share:.0f} %"

    planned, finished = TrainedOrder.PLANNED, TrainedOrder.FINISHED
    sampled = share_of_long([run.begun for run in runs(finished)])
    page = " ".join(PAGE.read_text().split())
    for sentence in (
        f"one prompt of five takes {LONG} to {LONGEST} times as long as a step, with `maxStaleness: "
        f"{MAX_STALENESS}` and {PROMPTS_PER_STEP} prompts in a step, {100 * sampled:.0f} % of the "
        "completions that are sampled are long.",
        f"With `Planned` it is {percent(planned, num_steps=4)} of what the first four steps are trained on,",
        f"With `Finished` it is {percent(finished, num_steps=4)} in the first four steps, and "
        f"{percent(finished, num_steps=5)} in the first five:",
    ):
        assert sentence in page
