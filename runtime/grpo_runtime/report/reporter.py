"""Everything a finished step is told to: metrics.jsonl, TensorBoard, Prometheus, progress file and log."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.run_config import JobRef
from grpo_runtime.report.metrics import MetricsRecord, MetricsWriter
from grpo_runtime.report.progress import ProgressFile, read_progress
from grpo_runtime.report.prometheus import write_prometheus
from grpo_runtime.report.tensorboard import TensorBoardWriter
from grpo_runtime.report.volume import full_volume_named

logger = logging.getLogger(__name__)


class Reporter:
    """Rank 0's voice."""

    def __init__(self, *, output_dir: Path, run_dir: Path, job: JobRef, initial: Progress) -> None:
        """`initial` is the Progress at the step this attempt starts from."""
        output_dir.mkdir(parents=True, exist_ok=True)
        self._output_dir = output_dir
        self._run_dir = run_dir
        self._attempt = initial.attempt
        self._labels = {"namespace": job.namespace, "job": job.name}
        known = read_progress(run_dir)
        heartbeat = known.heartbeat + 1 if known else 0
        self.progress = ProgressFile(run_dir, initial.model_copy(update={"heartbeat": heartbeat}))
        with full_volume_named(output_dir):
            self._metrics = MetricsWriter(output_dir)
            self._tensorboard = TensorBoardWriter(output_dir, start_step=initial.step)

    def is_alive(self, engines: EngineCounts) -> None:
        """Rank 0 waits for engines or rewards; with no current engine, everybody waits for one."""
        if engines.current:
            self.progress.update(state=TrainerState.TRAINING, message="", engines=engines)
            return
        message = (
            f"no rollout engine has the newest weights: {engines.known} of {engines.desired} engines found"
        )
        self.progress.update(state=TrainerState.WAITING_FOR_ROLLOUT, message=message, engines=engines)

    def finished_step(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        policy_version: str,
        stale_samples: int,
        engines: EngineCounts,
    ) -> None:
        """Tell everyone about a step; `step` counts from 1, `stale_samples` are of the whole run."""
        logger.info(
            "step %d/%d reward %s loss %.4g gradient norm %.3g in %.2f s",
            *(step, self.progress.latest.total_steps, _rounded(values.get("reward"))),
            *(values["loss"], values["grad_norm"], values["step_time"]),
        )
        values = {**values, "stale_samples": float(stale_samples)}
        record = MetricsRecord(attempt=self._attempt, step=step, time=time.time(), values=values)
        with full_volume_named(self._output_dir):
            self._metrics.write(record)
            self._tensorboard.write(values, step=step)
        numbers = {**values, "step": step, "attempt": self._attempt}
        counts = {f"engines/{name}": count for name, count in engines.to_object().items()}
        write_prometheus(self._run_dir, {**numbers, **counts}, labels=self._labels)
        self.progress.update(
            step=step,
            reward=values.get("reward"),
            policy_version=policy_version,
            tokens_per_second=values.get("tokens_per_second"),
            stale_samples=stale_samples,
            engines=engines,
            state=TrainerState.TRAINING,
            message="",
        )

    def saved(self, step: int | None) -> None:
        """The newest checkpoint is now that of `step`."""
        self.progress.update(checkpoint_step=step)

    def close(self, state: TrainerState) -> None:
        """Say how it ended, and close the files."""
        self.progress.update(state=state, message="")
        self._metrics.close()
        self._tensorboard.close()


def _rounded(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.4f}"
