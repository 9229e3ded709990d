"""For how long a trainer has had no engine to work with, as its reports tell. Pure.

The operator and local mode share it: after `NO_ENGINE_SECONDS` an engine whose error no retry can mend ends a
job that has begun.
"""

from dataclasses import dataclass
from typing import Self

from grpo_api.contract.progress import Progress

NO_ENGINE_SECONDS = 60.0
"""How long a trainer must have had no Current engine. In every step engines are not Current for a moment,
while they get new weights."""
LONGEST_GAP_SECONDS = 15.0
"""Two reports that are further apart than this do not tell what was between them: an engine may have been
Current, and a trainer may have gone on."""


@dataclass(frozen=True)
class EngineAbsence:
    """What the reports of one attempt have told about engines; times are seconds on any one clock."""

    since: float | None = None
    """When they first told that no engine is Current; None while one is."""
    told_at: float = 0.0
    """When they last told anything."""
    heartbeat: int | None = None
    """That of the newest report; a report with the same heartbeat tells nothing new."""
    step: int = 0

    @property
    def seconds(self) -> float:
        """For how long reports have told of no Current engine, without interruption."""
        return 0.0 if self.since is None else self.told_at - self.since

    def updated(self, progress: Progress, *, now: float) -> Self:
        """The absence after one more report. An engine was Current if a step was finished since the last one.

        A trainer that computes reports nothing new for minutes, and the last thing it said may be that its
        engines got new weights. So only a report with a new heartbeat counts, and a long gap begins anew.
        """
        if progress.heartbeat == self.heartbeat:
            return self
        is_continued = progress.step == self.step and now - self.told_at <= LONGEST_GAP_SECONDS
        since = self.since if is_continued and self.since is not None else now
        return type(self)(
            since=None if progress.engines.current > 0 else since,
            told_at=now,
            heartbeat=progress.heartbeat,
            step=progress.step,
        )
