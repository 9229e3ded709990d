"""When engines end a job, when one that hangs is replaced, and how long one that ended waits. Pure.

An engine that says that no retry can mend its error (exit code 40) ends a job before its first step: what is
wrong with one engine is mostly wrong with all of them, and nobody should have to wait for a deadline to learn
it. Later the same spec has worked, and the engine's node or network may be at fault: the job continues with
the other engines. Then such errors end the attempt only when the trainer has had no engine at all for a while
and all of them say so: one that is slow, joins or waits for a node may come back.
"""

from dataclasses import dataclass
from typing import Self

from grpo_api.contract.progress import Progress
from grpo_api.judge.attempts import pause_seconds

NO_ENGINE_SECONDS = 60.0
"""How long a trainer must have had no Current engine. In every step engines are not Current for a moment,
while they get new weights."""
LONGEST_GAP_SECONDS = 15.0
"""Two reports that are further apart than this do not show what was between them: an engine may have been
Current, and a trainer may have continued."""
REPLACE_AFTER_SECONDS = 240.0
"""How long reports must have named a hung engine before its pod is replaced. The trainer names it after a
minute. Together that is five minutes: a liveness probe restarts a server that hangs after one, and no
engine that came back by itself took more than two (`first_step_seconds` of the fleet)."""
PAUSE_SECONDS = 600.0
"""How old the newest engine of a job must be before another one is replaced: engines that hang again and
again cost one start in ten minutes, however many they are."""
_FRESH_SECONDS = 15.0
"""A report that has not changed for longer says nothing about an engine: a trainer that computes reports
nothing new, and meanwhile the engine may have continued."""
_SHORTEST_WAIT_SECONDS = 5.0
_SHORT_RUN_SECONDS = 60.0
"""An engine that ended before this long has most likely done no work."""


@dataclass(frozen=True)
class EngineAbsence:
    """Since when the reports of an attempt have had no Current engine; times are seconds on any one clock."""

    since: float | None = None
    """When they first said that no engine is Current; None while one is."""
    reported_at: float = 0.0
    """When the newest report came."""
    heartbeat: int | None = None
    """The heartbeat of the newest report; a report with the same heartbeat says nothing new."""
    step: int = 0

    @property
    def seconds(self) -> float:
        """How long reports have named no Current engine, without interruption."""
        return 0.0 if self.since is None else self.reported_at - self.since

    def updated(self, progress: Progress, *, now: float) -> Self:
        """The absence after one more report. An engine was Current if a step was finished since the last one.

        A trainer that computes reports nothing new for minutes, and the last thing it said may be that its
        engines got new weights. So only a report with a new heartbeat counts, and a long gap begins anew.
        """
        if progress.heartbeat == self.heartbeat:
            return self
        is_continued = progress.step == self.step and now - self.reported_at <= LONGEST_GAP_SECONDS
        since = self.since if is_continued and self.since is not None else now
        return type(self)(
            since=None if progress.engines.current > 0 else since,
            reported_at=now,
            heartbeat=progress.heartbeat,
            step=progress.step,
        )


def errors_end_job(
    *, num_errors: int, has_others: bool, is_before_first_step: bool, absence: EngineAbsence
) -> bool:
    """Whether engines that ended with an error that no retry can mend end the job or its attempt.

    `has_others` says whether another engine may come back, and `is_before_first_step` that the job is known
    to have made none and its attempt to have begun none. What a trainer that does not answer lacks is not
    known: its `absence` must be empty.
    """
    if num_errors == 0:
        return False
    return is_before_first_step or (not has_others and absence.seconds >= NO_ENGINE_SECONDS)


def seconds_until_replaced(
    *, reported_seconds: float, quiet_seconds: float, newest_engine_seconds: float | None
) -> float:
    """How long a hung engine keeps its pod; 0 when it is to be replaced now.

    `reported_seconds` is how long reports have named it, up to the newest change of a report, which was
    `quiet_seconds` ago. `newest_engine_seconds` is the age of the job's newest engine.
    """
    pause = 0.0 if newest_engine_seconds is None else PAUSE_SECONDS - newest_engine_seconds
    left = max(REPLACE_AFTER_SECONDS - reported_seconds, pause)
    is_fresh = quiet_seconds <= _FRESH_SECONDS
    return 0.0 if left <= 0 and is_fresh else max(_SHORTEST_WAIT_SECONDS, left)


def restart_pause(*, ran_seconds: float, num_short_runs: int) -> float:
    """Seconds before an engine is started again: 0 unless it ended soon after it had started.

    `num_short_runs` is how many times in a row that happened before.
    """
    return pause_seconds(num_short_runs + 1) if is_short_run(ran_seconds) else 0.0


def is_short_run(ran_seconds: float) -> bool:
    """Whether an engine ended soon after it had started."""
    return ran_seconds < _SHORT_RUN_SECONDS
