"""What a sink is: it gets every finished step, and is closed at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import JobRef
from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_runtime.report.samples import Sample


@dataclass(frozen=True)
class StepRecord(MetricsRecord):
    """One finished step as a sink gets it: its metrics, the engines at its end, and its completions if this
    is a step whose completions are kept."""

    engines: EngineCounts
    samples: Sequence[Sample] = ()
    evaluated: Sequence[Sample] = ()
    """The completions of the evaluation after it, if there was one and completions are kept."""


class MetricsSink(Protocol):
    """One destination for the metrics of finished steps."""

    def write(self, record: StepRecord) -> None:
        """Take one step; steps come in order. An error ends the attempt, VolumeFullError by its name."""

    def close(self, *, has_failed: bool = False) -> None:
        """Finish: every step was written. `has_failed` says that an error has ended the attempt, whatever
        comes of the job."""


@dataclass(frozen=True)
class SinkContext:
    """What a sink may need to know about the attempt whose steps it gets."""

    job: JobRef
    output_dir: Path
    """Directory on the claim, if the job has one: what later attempts and people find."""
    run_dir: Path
    """Directory on the pod's own volume: what the supervisor serves."""
    start_step: int
    """The step this attempt starts from; its first record is that of `start_step` + 1."""
    total_steps: int
    """The steps of the run, those of earlier attempts with them."""


OpenSink = Callable[[SinkContext], MetricsSink]
