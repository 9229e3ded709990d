"""Steps of asynchronous training that are killed at any moment, over a scripted source and the journal on
disk. Nothing is trained: what stands for the weights is a digest of all that the steps were trained on.
"""

import asyncio
import hashlib
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pod_builder import run_config
from scripted_groups import GROUP_SIZE, SameLoop, ScriptedScorer, ScriptedSource, settle

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.report.phases import Stopwatch
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.rollouts.async_stream import AsyncStream
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.frames import decode_frames
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import OnRead, SyncReport
from grpo_runtime.rollouts.journal.async_journal import AsyncJournal
from grpo_runtime.rollouts.journal.reader import attempts_in, step_folders
from grpo_runtime.rollouts.stream import StepGroups

T = TypeVar("T")
STEPS, EVERY_STEPS, EVALUATED_EVERY_STEPS = 8, 3, 2
PROMPTS = tuple(
    Prompt(index=index, content=f"{letter}=", columns={}) for index, letter in enumerate("abcdefg")
)


class Killed(Exception):
    """The attempt ends here, with what is on disk."""


class Reporter:
    """What is replayed, by step from 1."""

    def __init__(self) -> None:
        self.replayed: dict[int, int] = {}

    def begins_round(self, *, needs_engines: bool) -> None:
        """The samples of a step come next."""

    def replaying(self, num_samples: int, *, step: int) -> None:
        self.replayed[step] = num_samples


class NotingJournal(AsyncJournal):
    """Has the seeds of samples that were restored and are too old."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.forgotten: set[int] = set()

    def forget_restored(self, group: Group) -> None:
        self.forgotten |= {request.seed for request in group.requests}
        super().forget_restored(group)


async def attend(work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T:
    return await work


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return load_tokenizer(folder)


@dataclass
class Trained:
    """A step: its groups by what became of them, and the digest of the weights after it."""

    ordinals: tuple[tuple[int, ...], ...]
    digest: str
    staleness: float
    sampler: Mapping[str, Any]


@dataclass
class Run:
    """Attempts over one folder, one after the other. `checkpoint` is the newest step on disk."""

    folder: Path
    config: RunConfig
    tokenizer: Any
    draw: random.Random
    rewards: Callable[[int], tuple[float, ...]]
    checkpoint: int = 0
    steps: dict[int, Trained] = field(default_factory=dict)
    """The newest of each."""
    sampled: list[int] = field(default_factory=list)
    """Seeds, of all attempts."""
    num_attempts: int = 0
    is_evaluated: bool = True
    is_whole: bool = True
    """Whether nothing is lost but what a kill loses."""
    num_replayed: int = 0
    num_went_on: int = 0
    """Samples that went on from what an attempt before had of them."""
    reported_syncs: list[int] = field(default_factory=list)
    """Versions of the weight syncs that steps have the reports of."""

    async def attempt(self, *, num_events: int | None) -> bool:
        """Go on from the checkpoint until so many things have happened: whether the run has ended."""
        self.num_attempts += 1
        asynchronous = self.config.asynchronous
        assert asynchronous is not None
        sampler = PromptSampler(PROMPTS, seed=1, is_shuffled=True)
        if self.checkpoint:
            sampler.load_state_dict(dict(self.steps[self.checkpoint - 1].sampler))
        journal = NotingJournal(
            self.folder / "journal",
            job_uid="uid",
            attempt=self.num_attempts,
            reward_names=["scripted"],
            layout="DDP over 1",
            sampling=1,
            max_staleness=asynchronous.max_staleness,
        )
        source, scorer = ScriptedSource(attempt=self.num_attempts), ScriptedScorer(self.rewards)

        async def sync(step: int, on_read: OnRead) -> SyncReport:
            on_read()
            await settle()
            source.version = step
            version = PolicyVersion(self.num_attempts, step)
            return SyncReport(version=version, synced=("scripted",), failed={}, num_bytes=0)

        reporter = Reporter()
        stream = AsyncStream(
            run_config=self.config,
            position=OwnPosition(),
            source=source,
            sampler=sampler,
            scorer=scorer,  # type: ignore[arg-type]
            reporter=reporter,  # type: ignore[arg-type]
            journal=journal,
            tokenizer=self.tokenizer,
            thread=SameLoop(),  # type: ignore[arg-type]
            attend=attend,
            failures=FailuresInARow(groups_per_step=self.config.algorithm.prompts_per_step),
            begin_sync=sync,
            generation=lambda: None,
            advantages=AdvantageOptions(group_size=GROUP_SIZE, weights=(1.0,)),
        )
        durable = self._sizes()
        on_disk, unfinished_on_disk = self._seeds_on_disk(), self._unfinished_on_disk()
        left = num_events if num_events is not None else 10**9
        num_idle, failing = 0, self.draw.choice([0.05, 0.2])

        async def happen() -> None:
            nonlocal left, num_idle
            left -= 1
            if left < 0:
                raise Killed
            num_idle = 0 if source.open else num_idle + 1
            assert num_idle < 50, "the run waits for nothing"
            if source.open:
                ordinal, chance = self.draw.choice(source.open), self.draw.random()
                if chance < failing:
                    source.fail(ordinal)
                elif asynchronous.journal_segments and chance > 0.7:
                    source.hand_over_one_sample(ordinal)
                elif chance < 0.5:
                    source.finish(ordinal)
                elif source.num_missing(ordinal) > 1:
                    source.finish_one_sample(ordinal)
            await settle()

        try:
            for step in range(self.checkpoint, STEPS):
                choosing = asyncio.ensure_future(stream.groups_of(step, watch=Stopwatch(lambda: 0.0)))
                await settle()
                while not choosing.done():
                    await happen()
                groups = choosing.result()
                self.reported_syncs += [groups.sync.version.step] if groups.sync else []
                await journal.wait_until_stored()
                durable = self._sizes()
                self._train(step, groups, journal=journal)
                if self.is_evaluated and (step + 1) % EVALUATED_EVERY_STEPS == 0:
                    evaluating = asyncio.ensure_future(stream.give_weights(step + 1))
                    while not evaluating.done():
                        await happen()
                for _ in range(self.draw.randint(0, 4)):
                    await happen()
                if (step + 1) % EVERY_STEPS == 0:
                    self.checkpoint = step + 1
                    journal.forget_before(step + 1)
                    await journal.wait_until_stored()
                    durable = self._sizes()
        except Killed:
            return False
        finally:
            self.sampled += source.sampled
            self.num_replayed += len(reporter.replayed)
            again = on_disk.intersection(source.sampled) - journal.forgotten
            assert not again or not self.is_whole, "a sample that is on disk, and not too old, is made again"
            for seed, num_tokens in unfinished_on_disk.items():
                if self.is_whole and seed not in journal.forgotten and seed in source.went_on_from:
                    self.num_went_on += 1
                    assert len(source.went_on_from[seed]) == num_tokens, "what is on disk is sampled again"
            await stream.close()
            journal.close()
            self._lose_what_is_not_durable(durable)
        return True

    def _train(self, step: int, groups: StepGroups, *, journal: AsyncJournal) -> None:
        before = self.steps[step - 1].digest if step else ""
        content = repr([(group.number, group.completions, group.rewards) for group in groups.trained])
        digest = hashlib.sha256((before + content).encode()).hexdigest()
        asynchronous = self.config.asynchronous
        assert asynchronous is not None
        assert groups.metrics["async/staleness/max"] <= asynchronous.max_staleness
        assert len(groups.trained) <= self.config.algorithm.prompts_per_step
        metrics = journal.trained(step, digest)
        assert metrics.get("journal/digest_differs", 0.0) == 0.0
        trained = Trained(
            tuple(tuple(group.number for group in of) for of in (groups.trained, groups.sampled)),
            digest,
            groups.metrics["async/staleness/max"],
            groups.sampler,
        )
        if step in self.steps:
            assert self.steps[step] == trained
        self.steps[step] = trained

    def _files(self) -> list[Path]:
        folders = step_folders(self.folder / "journal")
        return [path for folder in folders.values() for path in attempts_in(folder).values()]

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in self._files()}

    def _lose_what_is_not_durable(self, durable: Mapping[Path, int]) -> None:
        """Any part of what was written since the disk was last waited for."""
        for path in self._files():
            least = durable.get(path, 0)
            os.truncate(path, self.draw.randint(least, path.stat().st_size))

    def _seeds_on_disk(self) -> set[int]:
        return {seed for seed, num_tokens in self._samples_on_disk().items() if num_tokens is None}

    def _unfinished_on_disk(self) -> dict[int, int]:
        """By seed the tokens that there are of samples that are not finished."""
        return {seed: num_tokens for seed, num_tokens in self._samples_on_disk().items() if num_tokens}

    def _samples_on_disk(self) -> dict[int, int | None]:
        """By seed how many tokens there are of a sample; None where it is finished."""
        frames = [frame for path in sorted(self._files()) for frame in decode_frames(path.read_bytes())[0]]
        return {
            frame.header["seed"]: len(frame.arrays["token_ids"])
            if frame.header["finish_reason"] == "abort"
            else None
            for frame in frames
            if frame.header["kind"] == "generated"
        }


def config_of(**asynchronous: Any) -> RunConfig:
    return run_config(
        algorithm={
            "steps": STEPS,
            "promptsPerStep": 3,
            "groupSize": GROUP_SIZE,
            **asynchronous.pop("algorithm", {}),
        },
        checkpoint={"claimName": "claim"},
        **{"async": asynchronous},
    )


@pytest.mark.parametrize(
    "asynchronous",
    [
        {"maxStaleness": 1},
        {"maxStaleness": 2, "syncEverySteps": 2},
        {"maxStaleness": 4, "stale": "Drop"},
        {"maxStaleness": 2, "algorithm": {"dynamicSampling": {"maxRounds": 4}}},
        {"maxStaleness": 3, "order": "Planned"},
        {"maxStaleness": 2, "pauseMode": "Abort", "journalSegments": True},
    ],
    ids=["1", "2 every 2", "4 drop", "2 dynamic", "3 planned", "2 segments"],
)
async def test_a_run_killed_at_any_moment_trains_the_same_groups_again_and_loses_none(
    tmp_path: Path, tokenizer: Any, asynchronous: dict[str, Any]
) -> None:
    config = config_of(**asynchronous)
    num_replayed = num_went_on = 0
    for seed in range(12):
        draw = random.Random(seed)
        teaches = [draw.random() < 0.7 for _ in range(1000)]

        def rewards(ordinal: int, teaches: list[bool] = teaches) -> tuple[float, ...]:
            return (0.0, 1.0 if teaches[ordinal] else 0.0)

        run = Run(tmp_path / str(seed), config, tokenizer, draw, rewards)
        for num_events in (*(draw.randint(0, 60) for _ in range(5)), None):
            before = {step: one.digest for step, one in run.steps.items()}
            has_ended = await run.attempt(num_events=num_events)
            for step, digest in before.items():
                assert run.steps[step].digest == digest, f"step {step} was trained on other groups"
            if has_ended:
                break
        assert has_ended
        assert config.asynchronous is not None
        assert max(one.staleness for one in run.steps.values()) <= config.asynchronous.max_staleness
        used = [ordinal for one in run.steps.values() for ordinal in one.ordinals[0]]
        assert len(set(used)) == len(used), "a prompt was trained twice"
        assert config.asynchronous.order != "Planned" or used == sorted(used)
        num_replayed += run.num_replayed
        num_went_on += run.num_went_on
    assert num_replayed > 10
    assert bool(num_went_on) == config.asynchronous.journal_segments


async def test_every_weight_sync_is_reported_by_a_step_once_it_has_ended(
    tmp_path: Path, tokenizer: Any
) -> None:
    draw = random.Random(0)
    config = config_of(maxStaleness=1)
    run = Run(tmp_path, config, tokenizer, draw, lambda ordinal: (0.0, 1.0), is_evaluated=False)
    assert await run.attempt(num_events=None)
    assert run.reported_syncs == list(range(STEPS - 1)), "the newest ends while the last step is trained"


async def test_a_run_that_continues_from_an_older_checkpoint_keeps_the_bound_and_loses_no_prompt(
    tmp_path: Path, tokenizer: Any
) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        teaches = [draw.random() < 0.7 for _ in range(1000)]
        config = config_of(maxStaleness=3, algorithm={"dynamicSampling": {"maxRounds": 4}})
        run = Run(
            tmp_path / str(seed),
            config,
            tokenizer,
            draw,
            lambda ordinal, teaches=teaches: (0.0, float(teaches[ordinal])),  # type: ignore[misc]
        )
        while run.checkpoint < 2 * EVERY_STEPS:
            await run.attempt(num_events=draw.randint(20, 60))
        # the newest is damaged, and what came before it is forgotten in part
        run.checkpoint, run.is_whole = EVERY_STEPS, False
        run.steps = {step: one for step, one in run.steps.items() if step < EVERY_STEPS}
        await run.attempt(num_events=draw.randint(0, 40))
        assert await run.attempt(num_events=None)
        used = [ordinal for one in run.steps.values() for ordinal in one.ordinals[0]]
        assert len(set(used)) == len(used)
