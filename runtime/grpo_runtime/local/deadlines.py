"""When an attempt that runs counts as failed, by the operator's rules: it began no step in time, or shows no
sign of life since it did. Pure."""

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress
from grpo_api.contract.retries import has_begun
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_runtime.termination import Outcome

STALLED_REASON = "TrainerStalled"
STARTUP_REASON = "StartupDeadlineExceeded"


class Deadlines:
    """The clocks of one attempt, which began at `now` (monotonic)."""

    def __init__(self, spec: GRPOJobSpec, *, now: float) -> None:
        self._startup_seconds = spec.startup_deadline_seconds
        self._stall_seconds = spec.stall_timeout_seconds
        self._began_at = now
        self._alive_at = now
        self._heartbeat: int | None = None
        self._has_begun = False

    def missed(self, progress: Progress | None, *, now: float) -> Outcome | None:
        """The outcome of an attempt that missed one, given its newest report; None while all is well.

        One that never began a step is not tried again: the same would happen. A stall is retried, counted. A
        long start is none, for models are loaded then and nothing beats yet.
        """
        self._note(progress, now=now)
        held_up = f": {progress.message}" if progress and progress.message else ""
        if not self._has_begun and now - self._began_at > self._startup_seconds:
            sentence = f"no step began within startupDeadlineSeconds ({self._startup_seconds}){held_up}"
            return Outcome(ExitCode.USER_ERROR, STARTUP_REASON, sentence)
        if self._has_begun and now - self._alive_at > self._stall_seconds:
            sentence = f"no sign of life for stallTimeoutSeconds ({self._stall_seconds}){held_up}"
            return Outcome(ExitCode.TRANSIENT, STALLED_REASON, sentence)
        return None

    def _note(self, progress: Progress | None, *, now: float) -> None:
        if progress is None:
            return
        self._has_begun = has_begun(progress)
        if progress.heartbeat != self._heartbeat:
            self._heartbeat, self._alive_at = progress.heartbeat, now
