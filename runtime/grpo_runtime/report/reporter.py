"""What rank 0 reports: each finished step to every sink, to the progress file and to the log."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from grpo_api.contract.graces import TRAINER_GRACE_SECONDS, trainer_grace_seconds
from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment, left_out_message
from grpo_api.contract.mismatch import MISMATCH_METRIC, mismatch_after
from grpo_api.contract.progress import (
    AsyncProgress,
    BestEvaluation,
    EngineCounts,
    EngineNote,
    Progress,
    TrainerState,
)
from grpo_api.contract.run_config import JobRef
from grpo_api.judge.engines import NO_ENGINE_SECONDS
from grpo_api.v1alpha1.status import ConditionType
from grpo_runtime.report.metrics_file import MetricsFile
from grpo_runtime.report.progress import STILL_SECONDS, ProgressFile, read_progress
from grpo_runtime.report.prometheus import PrometheusFile
from grpo_runtime.report.samples import Sample, SampleTables
from grpo_runtime.report.sink import OpenSink, SinkContext, StepRecord
from grpo_runtime.report.tensorboard import TensorBoardFiles
from grpo_runtime.report.waiting import (
    still_message,
    stopped,
    stopped_message,
    with_notes,
    without_weights_message,
)
from grpo_runtime.rollouts.interface import Generation

logger = logging.getLogger(__name__)

SINKS: tuple[OpenSink, ...] = (
    lambda context: MetricsFile(context.output_dir),
    lambda context: TensorBoardFiles(context.output_dir, start_step=context.start_step),
    lambda context: SampleTables(context.output_dir, start_step=context.start_step),
    lambda context: PrometheusFile(context.run_dir, job=context.job, total_steps=context.total_steps),
)
"""The sinks of every run, in the order in which they get a step: metrics.jsonl first, already on disk when
the others get it. Trackers, which a job names, are in `trackers`."""


class Reporter:
    """Reports progress from rank 0."""

    def __init__(
        self,
        *,
        output_dir: Path,
        run_dir: Path,
        job: JobRef,
        initial: Progress,
        has_mismatch_bound: bool = True,
        reward_names: Sequence[str] = (),
        sinks: Sequence[OpenSink] = SINKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`initial` is the Progress at the step this attempt starts from. `has_mismatch_bound` as in
        `contract.mismatch.why_unbounded`."""
        output_dir.mkdir(parents=True, exist_ok=True)
        self._attempt = initial.attempt
        self._has_mismatch_bound = has_mismatch_bound
        self._reward_names = reward_names
        self._last_generation: Generation | None = None
        """At the last report, while completions are sampled."""
        self._num_moved = 0
        self._needs_engines = True
        self._clock = clock
        self._without_engine_since: float | None = None
        """Since when no engine was current at any report; None while one is or none is needed."""
        self._without_weights: tuple[EngineNote, ...] = ()
        """Engines that get no weights, as the newest `report_waiting` said."""
        known = read_progress(run_dir)
        heartbeat = known.heartbeat + 1 if known else 0
        self.progress = ProgressFile(run_dir, initial.model_copy(update={"heartbeat": heartbeat}))
        context = SinkContext(
            job=job,
            output_dir=output_dir,
            run_dir=run_dir,
            start_step=initial.step,
            total_steps=initial.total_steps,
        )
        self._sinks = [open_sink(context) for open_sink in sinks]

    def report_waiting(
        self,
        engines: EngineCounts,
        *,
        generation: Generation | None = None,
        waits_for: str = "",
        without_weights: Sequence[EngineNote] = (),
    ) -> None:
        """Report that rank 0 waits: for an engine if none is current and one is needed, else for completions
        or rewards. `waits_for` says what takes long of the latter, and of groups that are begun ahead, if
        anything does.

        An attempt that has begun has no current engine in every weight sync. Its state stays Training until
        that has lasted for NO_ENGINE_SECONDS, and what it waits for is said from STILL_SECONDS on.

        While completions are sampled, only one that was finished is a sign of life: rank 0 itself lives on
        when all engines hang. Engines `without_weights` are named in every report until the next call.
        """
        self._without_weights = tuple(without_weights)
        engines = with_notes(engines, (*without_weights, *(stopped(generation) if generation else ())))
        before, self._last_generation = self._last_generation, generation if engines.current else None
        is_still = self._last_generation is not None and self._last_generation.is_still_since(before)
        if engines.current or not self._needs_engines:
            self._without_engine_since = None
            step = self.progress.latest.step + 1
            message = waits_for or (still_message(generation, step=step) if generation else "")
            self.progress.update(
                is_sign_of_life=not is_still,
                state=TrainerState.TRAINING,
                message=self._with_note(message),
                engines=engines,
            )
            return
        if self._without_engine_since is None:
            self._without_engine_since = self._clock()
        seconds = self._clock() - self._without_engine_since
        state, message = self.progress.latest.state, ""
        if state is not TrainerState.TRAINING or seconds >= NO_ENGINE_SECONDS:
            state = TrainerState.WAITING_FOR_ROLLOUT
        hung = "" if generation is None else stopped_message(generation)
        if state is TrainerState.WAITING_FOR_ROLLOUT or seconds >= STILL_SECONDS or hung:
            message = _no_engine_message(engines) + hung
        self.progress.update(state=state, message=self._with_note(message), engines=engines)

    def _with_note(self, message: str) -> str:
        # it comes first: a condition cuts the end of a long message off
        return "; ".join(filter(None, (without_weights_message(self._without_weights), message)))

    def _compared_nats(self, values: Mapping[str, float]) -> float | None:
        return values.get(MISMATCH_METRIC) if self._has_mismatch_bound else None

    def begins_round(self, *, needs_engines: bool) -> None:
        """Learn whether engines are needed for the completions that come next, so that a wait for them is
        reported as such."""
        self._needs_engines = needs_engines

    def replaying(self, num_samples: int, *, step: int) -> None:
        """Report that a step, counted from 1, takes this many samples from the journal."""
        message = f"step {step}: replayed {num_samples} samples from the journal"
        self.progress.update(state=TrainerState.TRAINING, message=message)

    def finished_step(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        policy_version: str,
        engines: EngineCounts,
        samples: Sequence[Sample] = (),
        evaluated: Sequence[Sample] = (),
    ) -> None:
        """Report a step; `step` counts from 1. `samples` and `evaluated` as in StepRecord."""
        self._needs_engines, self._without_engine_since = True, None
        logger.info(
            "step %d/%d reward %s loss %.4g gradient norm %.3g in %.2f s",
            *(step, self.progress.latest.total_steps, _rounded(values.get("reward"))),
            *(values.get("loss", math.nan), values.get("grad_norm", math.nan), values["step_time"]),
        )
        record = StepRecord(
            attempt=self._attempt,
            step=step,
            time=time.time(),
            values=values,
            engines=engines,
            samples=samples,
            evaluated=evaluated,
        )
        for sink in self._sinks:
            sink.write(record)
        known = self.progress.latest.mismatch
        mismatch = mismatch_after(known, step=step, nats=self._compared_nats(values))
        if mismatch is not None and mismatch.step == step:
            logger.warning("%s", mismatch.message)
        was_reported = self.progress.latest.no_learning_signal is not None
        were_left_out, left_out = self.progress.latest.left_out, LeftOutEnvironment.of_metrics(values)
        self.progress.update(
            step=step,
            mismatch=mismatch,
            steps_without_signal=StepsWithoutSignal.of_metrics(values, step=step, rewards=self._reward_names),
            left_out=left_out or None,
            reward=values.get("reward"),
            policy_version=policy_version,
            tokens_per_second=values.get("tokens_per_second"),
            asynchronous=AsyncProgress.of_metrics(values),
            engines=with_notes(engines, self._without_weights),
            state=TrainerState.TRAINING,
            message=self._with_note(""),
        )
        no_signal = self.progress.latest.no_learning_signal
        if no_signal is not None and not was_reported:
            logger.warning("%s: %s", ConditionType.NO_LEARNING_SIGNAL, no_signal.message)
        if left_out and not were_left_out:
            logger.warning("%s: %s", ConditionType.ENVIRONMENT_FAILING, left_out_message(left_out))

    def report_bytes(self, message: str, *, num_bytes: int) -> None:
        """Report that `num_bytes` bytes have been written or uploaded so far. Only more of them are a sign of
        life: rank 0 itself lives on when a volume or a store does not answer."""
        is_moving = num_bytes != self._num_moved
        self._num_moved = num_bytes
        self.progress.update(is_sign_of_life=is_moving, message=self._with_note(message))

    def report_checkpoint(self, step: int | None, *, seconds: float | None = None) -> None:
        """Report that the newest checkpoint is now that of `step`, and how long its save took, if this
        attempt has saved it."""
        known = self.progress.latest.checkpoint_seconds
        if seconds is not None and (known or trainer_grace_seconds(seconds) > TRAINER_GRACE_SECONDS):
            known = math.ceil(seconds)
        self.progress.update(checkpoint_step=step, checkpoint_seconds=known)

    def report_best_evaluation(self, step: int, *, reward: float) -> None:
        """Report that the checkpoint of `step` is kept, because its evaluation is better than all before."""
        self.progress.update(best_evaluation=BestEvaluation(step=step, reward=reward))

    def close(self, state: TrainerState) -> None:
        """Report how the attempt ended, and close the sinks: all of them, before an exception
        propagates."""
        self.progress.update(state=state, message="")
        with ExitStack() as all_sinks:
            for sink in reversed(self._sinks):
                all_sinks.callback(sink.close)

    def fail(self) -> None:
        """Close the sinks after an error, which is reported elsewhere: what a sink raises now is a
        warning."""
        for sink in self._sinks:
            try:
                sink.close(has_failed=True)
            except Exception as error:  # of a volume or a library: the first error counts
                logger.warning("%s could not be closed: %s", type(sink).__name__, error)


def _no_engine_message(engines: EngineCounts) -> str:
    answered = f"{engines.known} of {engines.desired} engines have answered"
    if engines.known > engines.desired:  # more were asked for since, or one has replaced another
        answered = f"{engines.known} engines have answered, and the attempt began with {engines.desired}"
    return f"no rollout engine has the newest weights: {answered}"


def _rounded(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.4f}"
