"""GRPO, as rank 0 coordinates it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from grpo_api.contract.learning_signal import PREFIX, Lack, count_step
from grpo_api.contract.left_out import LEFT_OUT_IN_A_ROW, count_groups
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.export.upload import ModelUploads
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.process.background import LoopThread
from grpo_runtime.report.metrics import count_tokens
from grpo_runtime.report.overlap import IdleEngines
from grpo_runtime.report.phases import Stopwatch
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.report.samples import Sample
from grpo_runtime.report.waiting import without_weights
from grpo_runtime.rollouts.agents.environments import environment_of, environments_in
from grpo_runtime.rollouts.async_stream import AsyncStream
from grpo_runtime.rollouts.collect import Collection, Source
from grpo_runtime.rollouts.failures import FailuresInARow
from grpo_runtime.rollouts.group import Group, advantages_of, completions_of
from grpo_runtime.rollouts.interface import Engines, Generation, OnRead, SyncReport
from grpo_runtime.rollouts.journal.async_journal import AsyncJournal
from grpo_runtime.rollouts.journal.journal import Journal, NoJournal
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.stream import StepGroups, Stream
from grpo_runtime.trainer.algorithm_options import advantage_options
from grpo_runtime.trainer.batch import make_batch, send_batch
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.distributed import Command, Ranks, StopRequestedError
from grpo_runtime.trainer.evaluation import FAILED, Evaluated, Evaluation
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.step_report import Learned, samples_of, step_metrics
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.weight_checks import make_probe, weight_digest

T = TypeVar("T")


@dataclass(frozen=True)
class Coordinator:
    """Rank 0 with everything it coordinates. The other ranks are in `following`."""

    run_config: RunConfig
    attempt: int
    ranks: Ranks
    strategy: Strategy
    learner: Learner
    engines: Engines
    sampler: PromptSampler
    scorer: Scorer
    reporter: Reporter
    saver: Saver
    journal: Journal | AsyncJournal | NoJournal
    decoder: CompletionDecoder
    source: Source
    thread: LoopThread
    """Thread of the source and the reward functions."""
    uploads: ModelUploads = field(default_factory=ModelUploads)
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many prompts were left out of the dataset, by the metric of the reason."""
    evaluation: Evaluation | None = None
    clock: Callable[[], float] = time.monotonic

    async def train(self, state: RunState) -> bool:
        """Train from `state` to the last step: True when every step is done, False when asked to stop.

        When any rank is asked to stop, all end at the last step boundary, which is saved.
        """
        stream = self._stream()
        try:
            return await self._train(state, stream=stream)
        finally:
            await stream.close()

    async def _train(self, state: RunState, *, stream: Stream | AsyncStream) -> bool:
        for step in range(state.step, self.run_config.total_steps):
            self._note_commit()
            # an evaluation or a save between two steps is part of neither
            self.engines.take_idle_seconds()
            watch = Stopwatch(self.clock)
            try:
                groups = await stream.groups_of(step, watch=watch)
                if self.run_config.asynchronous is not None:
                    # what was waited for is here: a message about it would stay while the step is trained
                    self._report_waiting()
                await self._store_journal(watch=watch)
                self.ranks.announce(Command.TRAIN)
            except StopRequestedError:
                return await self._stop(state)
            learned = self._learn(groups.trained, step=step, watch=watch)
            state = self._after_step(state, groups, lack=learned.lack)
            # the seconds of a step are without those of an evaluation
            seconds, idle = watch.seconds(), self._take_idle()
            evaluated = await self._evaluate(state, stream=stream)
            self._report(state, groups, learned, evaluated, seconds=seconds, idle=idle)
            is_due = state.step % self.run_config.checkpoint.every_steps == 0
            await self._save(state, is_due=is_due or evaluated.is_best)
            if evaluated.is_stopped:
                return await self._stop(state)
        return await self._finish(state)

    def _stream(self) -> Stream | AsyncStream:
        make: partial[Stream] | partial[AsyncStream] = partial(Stream, engines=self.engines, sync=self._sync)
        if self.run_config.asynchronous is not None:
            make = partial(AsyncStream, begin_sync=self._begin_sync, generation=self.engines.generation)
        return make(
            run_config=self.run_config,
            position=self.ranks.position,
            source=self.source,
            sampler=self.sampler,
            scorer=self.scorer,
            reporter=self.reporter,
            journal=self.journal,
            tokenizer=self.decoder.tokenizer,
            thread=self.thread,
            attend=self._attend,
            failures=self._failures(),
            advantages=advantage_options(self.run_config),
        )

    def _failures(self) -> FailuresInARow:
        num_groups, environment = self.run_config.algorithm.prompts_per_step, environment_of(self.run_config)
        if environment is None:
            return FailuresInARow(groups_per_step=num_groups)
        return FailuresInARow(
            groups_per_step=num_groups,
            environments=environments_in(self.sampler.prompts, self.run_config),
            environment=environment,
        )

    async def _store_journal(self, *, watch: Stopwatch) -> None:
        """Wait until the journal has the step on disk, which must be before it is trained on."""
        if not self.journal.is_stored:
            return
        with watch.phase("score"):
            await self.ranks.attend(
                self.journal.wait_until_stored(),
                on_tick=lambda: self.reporter.report_bytes("the journal is being written", num_bytes=0),
            )

    def _learn(self, groups: Sequence[Group], *, step: int, watch: Stopwatch) -> Learned:
        """Update the policy, which has done `step` steps."""
        with watch.phase("train"):
            advantages = advantages_of(groups, options=advantage_options(self.run_config))
            batch = make_batch(
                completions_of(groups),
                group_sizes=[len(group.completions) for group in groups],
                advantages=advantages.advantages,
                pad_id=self._pad_id,
                masks_truncated=self.run_config.algorithm.mask_truncated,
                step=step,
            )
            send_batch(batch, ranks=self.ranks)
            metrics = self.learner.update(batch, step=step)
        return Learned(advantages, metrics | self._digest_weights(step, watch=watch))

    async def _stop(self, state: RunState) -> bool:
        """End at the step boundary `state`, which is saved: False, as not every step is done."""
        await self._save(state)
        await self._wait_for_commit()
        self.ranks.announce(Command.STOP)
        return False

    async def _finish(self, state: RunState) -> bool:
        """Save, export and upload the trained policy: False when asked to stop before it is uploaded."""
        await self._save(state)
        await self._wait_for_commit()
        self.ranks.announce(Command.EXPORT)
        await self._export()
        try:
            await self._upload()
        except StopRequestedError:
            self.ranks.announce(Command.STOP)
            return False
        # last, so that a report of the last step's checkpoint means that everything is written
        self._report_newest_checkpoint()
        self.ranks.announce(Command.DONE)
        return True

    async def _sync(self, step: int) -> SyncReport:
        """Give the engines the policy of `step` finished steps; also the first one, and after a resume."""
        report = await self._attend(self._begin_sync(step))
        # generation may end before the next report is due, and training then takes as long as it takes
        self._report_waiting()
        return report

    def _begin_sync(self, step: int, on_read: OnRead | None = None) -> Coroutine[Any, Any, SyncReport]:
        """A weight sync, to be awaited while ranks hand out the weights."""
        probe = None
        if self.run_config.weight_sync.verify:
            self.ranks.announce(Command.PROBE)
            self.ranks.position.at("computes the probe of the weight sync")
            probe = make_probe(self.strategy, self.run_config, tokenizer=self.decoder.tokenizer)
        self.ranks.announce(Command.SYNC)
        self.ranks.position.at("begins the weight sync")
        return self.engines.sync(
            self.strategy.engine_weights(), version=self._version(step), probe=probe, on_read=on_read
        )

    async def _evaluate(self, state: RunState, *, stream: Stream | AsyncStream) -> Evaluated:
        """Measure the policy of `state` where that is due. The engines get its weights before the next step
        asks for them, and once more then."""
        evaluation = self.evaluation
        if evaluation is None or not evaluation.is_due(state.step):
            return Evaluated()
        watch = Stopwatch(self.clock)
        groups = evaluation.groups(state.step)
        try:
            with watch.phase("evaluate"):
                await stream.give_weights(state.step)
                collection = Collection(groups, scorer=self.scorer, journal=NoJournal(), thread=self.thread)
                await self._attend(collection.sample(self.source))
                measuring = evaluation.measure(collection.score(), groups)
                found = await self._attend(measuring, waits_for=collection.waits_for)
        except StopRequestedError:
            return Evaluated(is_stopped=True)
        seconds = {name: value for name, value in watch.seconds().items() if name != "step_time"}
        return Evaluated(
            {**found, **seconds},
            samples=self._kept_evaluation(evaluation, groups, is_scored=not found[FAILED]),
            is_best=evaluation.is_best(found, step=state.step),
        )

    def _digest_weights(self, step: int, *, watch: Stopwatch) -> dict[str, float]:
        """Record what the update has made of the weights, where the run keeps a journal."""
        if not self.journal.is_stored:
            return {}
        with watch.phase("digest"):
            self.ranks.announce(Command.DIGEST)
            return self.journal.trained(step, weight_digest(self.strategy, ranks=self.ranks))

    def _after_step(self, state: RunState, groups: StepGroups, *, lack: Lack | None) -> RunState:
        """Where the run stands now that the step after `state` is trained."""
        return RunState(
            step=state.step + 1,
            num_tokens=state.num_tokens + sum(count_tokens(completions_of(groups.trained))),
            sampler=groups.sampler,
            learner=asdict(self.learner.state),
            without_signal=count_step(state.without_signal, lack),
            left_out=self._count_left_out(state, groups),
        )

    def _count_left_out(self, state: RunState, groups: StepGroups) -> dict[str, int]:
        environment = environment_of(self.run_config)
        if environment is None:
            return {}
        return count_groups(
            state.left_out,
            left_out=map(environment, groups.left_out),
            sampled=set(map(environment, groups.sampled)),
        )

    def _take_idle(self) -> IdleEngines | None:
        """How long engines were idle, and what they computed again, where they sample while the trainer
        trains."""
        if self.run_config.asynchronous is None:
            return None
        return IdleEngines(
            self.engines.take_idle_seconds(),
            num_engines=self.engines.counts().known,
            recomputed=self.engines.take_recomputed(),
        )

    def _report(
        self,
        state: RunState,
        groups: StepGroups,
        learned: Learned,
        evaluated: Evaluated,
        *,
        seconds: Mapping[str, float],
        idle: IdleEngines | None,
    ) -> None:
        values = {
            **step_metrics(
                groups,
                learned,
                scorer=self.scorer,
                measured={**seconds, **evaluated.metrics},
                idle=idle,
                environment=environment_of(self.run_config),
            ),
            **self.saver.take_metrics(),
            "num_tokens": float(state.num_tokens),
            **{name: float(number) for name, number in self.left_out.items()},
            **{f"{PREFIX}{lack}": float(num) for lack, num in state.without_signal.items()},
            **{LEFT_OUT_IN_A_ROW.format(name): float(num) for name, num in state.left_out.items()},
        }
        self.ranks.position.at("reports the step")
        self.reporter.finished_step(
            values,
            step=state.step,
            policy_version=str(self._version(state.step)),
            engines=self.engines.counts(),
            samples=self._kept_samples(state.step, groups, learned),
            evaluated=evaluated.samples,
        )

    def _kept_samples(self, step: int, groups: StepGroups, learned: Learned) -> list[Sample]:
        """The completions for people, in a step that keeps them."""
        if not self.run_config.keeps_samples_of(step):
            return []
        return samples_of(
            groups.trained,
            left_out=groups.left_out,
            names=self.scorer.names,
            rewards=learned.advantages.rewards.tolist(),
            advantages=learned.advantages.advantages.tolist(),
            decoder=self.decoder,
        )

    def _kept_evaluation(
        self, evaluation: Evaluation, groups: Sequence[Group], *, is_scored: bool
    ) -> list[Sample]:
        """The completions of an evaluation for people, in a run that keeps any; where it `is_scored`."""
        if not self.run_config.report.samples_every_steps:
            return []
        sampled = [group for group in groups if is_scored and not group.is_left_out]
        return samples_of(
            sampled,
            left_out=[group for group in groups if group.is_left_out],
            names=self.scorer.names,
            rewards=evaluation.rewards(sampled).tolist() if sampled else [],
            decoder=self.decoder,
        )

    async def _save(self, state: RunState, *, is_due: bool = True) -> None:
        """Begin to save `state`, if that is due and new. The save before must have ended."""
        if is_due and self.saver.is_new(state):
            await self._wait_for_commit()
            self.ranks.announce(Command.SAVE)
            self.ranks.position.at("copies the state for a checkpoint")
            self.saver.save(state)

    async def _wait_for_commit(self) -> None:
        """Wait until no save is in flight, also when asked to stop."""
        if self.saver.is_saving:
            await self.ranks.attend(
                self.saver.wait(),
                on_tick=lambda: self.reporter.report_bytes(
                    "a checkpoint is being written", num_bytes=self.saver.num_bytes_written
                ),
                ends_on_stop=False,
            )
        self._note_commit()

    def _note_commit(self) -> None:
        """Learn whether a checkpoint was committed: `saver.newest_step` is its step from here on. Raises what
        kept it from being written."""
        if not self.saver.poll():
            return
        self.journal.forget_before(self.saver.newest_step)
        if self.evaluation is not None and self.saver.newest_step is not None:
            self.evaluation.committed(self.saver.newest_step)
        if self.saver.newest_step != self.run_config.total_steps:
            self._report_newest_checkpoint()

    def _report_newest_checkpoint(self) -> None:
        self.reporter.report_checkpoint(self.saver.newest_step, seconds=self.saver.newest_seconds)

    def _report_waiting(self, generation: Generation | None = None, *, waits_for: str = "") -> None:
        engines = self.engines.counts()
        notes = without_weights(self.engines.failed_syncs(), engines=engines)
        self.reporter.report_waiting(
            engines, generation=generation, waits_for=waits_for, without_weights=notes
        )

    async def _export(self) -> None:
        """Write the trained policy, also when asked to stop: nothing else is left to do."""
        message = "the trained model is being written"
        self.reporter.report_bytes(message, num_bytes=self.saver.num_bytes_written)
        await self.ranks.attend(
            asyncio.wrap_future(self.saver.export()),
            on_tick=lambda: self.reporter.report_bytes(message, num_bytes=self.saver.num_bytes_written),
            ends_on_stop=False,
        )

    async def _upload(self) -> None:
        """Upload the exported model. An attempt that begins with the last step done does it again."""
        if not self.uploads.destinations:
            return
        state = self.uploads.state
        await self.ranks.attend(
            self.uploads.run(),
            on_tick=lambda: self.reporter.report_bytes(state.message, num_bytes=state.num_bytes),
        )

    @property
    def _pad_id(self) -> int:
        return int(self.decoder.tokenizer.pad_token_id)

    def _version(self, step: int) -> PolicyVersion:
        return PolicyVersion(attempt=self.attempt, step=step)

    async def _attend(self, work: Awaitable[T], *, waits_for: Callable[[], str] | None = None) -> T:
        """Wait for `work` while the ranks continue meeting and the progress continues being reported."""

        def on_tick() -> None:
            self._note_commit()
            self._report_waiting(self.engines.generation(), waits_for=waits_for() if waits_for else "")

        return await self.ranks.attend(work, on_tick=on_tick)
