"""What a tracker is to the thread that delivers to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import TrackerSpec
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.report.sink import SinkContext, StepRecord


class StepRefusedError(ValueError):
    """A service that answers does not take a step, and never will."""


class Tracker(Protocol):
    """A run in a service, with a connection to it. Whatever is raised is tried again later, but for a step
    that is refused."""

    def write(self, record: StepRecord) -> None:
        """Log one step. Of a step that is logged twice, after a resume or an error, the service keeps both or
        the later one. Raises StepRefusedError, or another ValueError or a TypeError of the library, for what
        is in the step."""

    def close(self, *, has_failed: bool) -> None:
        """End the run there, once everything was logged, as one that has failed or is done. A later attempt
        continues with it."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to know to open its run: a later attempt of the job finds the same one."""

    spec: TrackerSpec
    run_config: RunConfig
    credentials: UploadCredentials
    context: SinkContext

    @property
    def project(self) -> str:
        """Where the run is listed."""
        return self.spec.project or self.run_config.job.namespace


OpenTracker = Callable[[TrackedRun], Tracker]
