"""Weights & Biases. Environment variables of its own, such as WANDB_MODE=offline, count as always."""

from typing import Any

import wandb

from grpo_runtime.report.samples import TRACKED, made
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.report.trackers.interface import TrackedRun

_INIT_SECONDS = 60.0


class WandbTracker:
    """A run of W&B with the uid of the job, so that every attempt continues with the same."""

    def __init__(self, run: TrackedRun) -> None:
        server = {"base_url": run.spec.url} if run.spec.url else {}
        entity, _, project = run.project.rpartition("/")
        job = run.run_config.job
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=job.uid,
            name=job.name,
            group=job.namespace,
            resume="allow",
            dir=str(run.context.output_dir),
            config=run.run_config.to_object(),
            settings=wandb.Settings(
                api_key=run.credentials.read("apiKey"),
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                init_timeout=_INIT_SECONDS,
                x_disable_meta=True,
                x_disable_stats=True,
                **server,
            ),
        )
        # W&B's own step counter never goes back, as a run does that resumes from a checkpoint
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, record: StepRecord) -> None:
        """Log the metrics, and the completions of a step that keeps them as a table."""
        values: dict[str, Any] = {**record.values, "attempt": record.attempt, "step": record.step}
        if record.samples:
            rows = [[getattr(sample, column) for column in TRACKED] for sample in made(record.samples)]
            values["samples"] = wandb.Table(columns=list(TRACKED), data=rows)
        self._run.log(values)

    def close(self, *, has_failed: bool) -> None:
        """End the run, and W&B's own process, which may still have some of it in memory."""
        self._run.finish(exit_code=int(has_failed))
        wandb.teardown()
