"""Whether a running attempt counts as failed, by the operator's rules: it began no step in time, or shows no
progress since it did. Pure."""

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.reasons import Reason
from grpo_api.contract.retries import has_begun, is_reading
from grpo_api.v1alpha1.spec import GRPOJobSpec


class Deadlines:
    """The startup deadline and the stall timeout of one attempt, which began at `now` (monotonic). For the
    first of them the time in which a checkpoint is read does not count."""

    def __init__(self, spec: GRPOJobSpec, *, now: float) -> None:
        self._startup_seconds = spec.startup_deadline_seconds
        self._stall_seconds = spec.stall_timeout_seconds
        self._began_at = now
        self._alive_at = now
        self._heartbeat: int | None = None
        self._has_begun = False

    def missed(self, progress: Progress | None, *, now: float) -> TerminationMessage | None:
        """Why the attempt counts as failed, given its newest report; None while it does not.

        An attempt that began no step is not retried, because the next one would fail in the same way. A stall
        is retried and counted; it can only happen after the start, because the heartbeat stands still while
        models are loaded.
        """
        self._note(progress, now=now)
        held_up = f": {progress.message}" if progress and progress.message else ""
        if not self._has_begun and now - self._began_at > self._startup_seconds:
            return TerminationMessage(
                exit_code=ExitCode.USER_ERROR,
                reason=Reason.STARTUP_DEADLINE_EXCEEDED,
                message=f"no step began within startupDeadlineSeconds ({self._startup_seconds}){held_up}",
            )
        if self._has_begun and now - self._alive_at > self._stall_seconds:
            return TerminationMessage(
                exit_code=ExitCode.TRANSIENT,
                reason=Reason.TRAINER_STALLED,
                message=f"no progress for stallTimeoutSeconds ({self._stall_seconds}){held_up}",
            )
        return None

    def _note(self, progress: Progress | None, *, now: float) -> None:
        if progress is None:
            return
        self._has_begun = has_begun(progress)
        if progress.heartbeat != self._heartbeat:
            if self._heartbeat is not None and is_reading(progress):
                self._began_at = now
            self._heartbeat, self._alive_at = progress.heartbeat, now
