"""The API server's clock, as its answers show it."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

_TOLERATED = timedelta(seconds=2)
"""Dates have whole seconds, and a proxy may have written them a moment ago."""
_LONGEST_ANSWER_SECONDS = 5.0
"""An answer that took longer does not say when its date was written."""


class ServerClock:
    """Times in objects are the API server's, or those of nodes that agree with it: they are compared with its
    clock and not with this machine's, which may be minutes ahead, and may be set while the operator runs.

    Between two dates it follows the monotonic clock. Until the first it is this machine's.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._zero = wall() - timedelta(seconds=monotonic())
        """When the monotonic clock was at 0."""

    def __call__(self) -> datetime:
        """The time now."""
        return self._zero + timedelta(seconds=self._monotonic())

    def heard(self, date: str | None, *, asked_at: float) -> None:
        """Take in the header Date of an answer to a request that was sent at `asked_at`, on the monotonic
        clock. One that cannot be read, or took too long, says nothing."""
        answered_at = self._monotonic()
        if date is None or answered_at - asked_at > _LONGEST_ANSWER_SECONDS:
            return
        try:
            told = parsedate_to_datetime(date)
        except ValueError:
            return
        if told.tzinfo is None:
            return
        zero = told + timedelta(seconds=0.5) - timedelta(seconds=(asked_at + answered_at) / 2)
        difference = zero - self._zero
        if abs(difference) > _TOLERATED:
            log.warning(
                "the API server's clock is %+.0f s from the one that this operator used so far: it uses the "
                "API server's from now on",
                difference.total_seconds(),
            )
            self._zero = zero
