"""Whether an attempt has made no progress for too long, as its own supervisor judges it while nobody asks for
its progress. Pure.

Otherwise the operator judges it: its limits may have changed since the pod was made.
"""

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.reasons import Reason
from grpo_api.judge.clocks import Clocks
from grpo_runtime.settings import TrainerSettings

HEARD_SECONDS = 120.0
"""For how long somebody who has asked for the progress counts as one who judges it."""


class StallLimit:
    """The limits of one attempt, which began at `now` (monotonic, in seconds)."""

    def __init__(self, settings: TrainerSettings, *, now: float) -> None:
        self._stall_seconds = settings.stall_timeout_seconds
        self._startup_seconds = settings.startup_deadline_seconds
        self._clocks = Clocks.begin(now)

    def exceeded(
        self, progress: Progress | None, *, asked_at: float | None, now: float
    ) -> TerminationMessage | None:
        """Why the attempt is to end, given its newest report and when somebody asked for it last; None while
        it is not."""
        if progress is None:
            return None  # a pod without rank 0
        self._clocks = self._clocks.updated(progress, now=now)
        has_begun = self._clocks.has_begun
        limit = self._stall_seconds if has_begun else self._startup_seconds
        is_judged = asked_at is not None and now - asked_at < HEARD_SECONDS
        seconds = now - self._clocks.alive_at
        if limit is None or is_judged or seconds < limit:
            return None
        field = "stallTimeoutSeconds" if has_begun else "startupDeadlineSeconds"
        sentence = f"no sign of life for {seconds:.0f} s ({field} is {limit}), and no operator asks"
        return TerminationMessage(
            exit_code=ExitCode.TRANSIENT,
            reason=Reason.TRAINER_STALLED,
            message=f"{sentence}: {progress.message or progress.state.value}",
        )
