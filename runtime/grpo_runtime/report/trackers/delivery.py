"""Delivers steps to a tracker from a thread, which tries again while the service does not answer."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from grpo_runtime.process.background import in_thread
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.report.trackers.interface import Tracker

logger = logging.getLogger(__name__)

MAX_WAITING = 2000
"""Steps that wait for a service at most; then the oldest is dropped. All are in metrics.jsonl."""
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 5.0, 300.0
_CLOSE_SECONDS = 10.0
"""How long the end of a run waits for what is not delivered yet."""


class Delivery:
    """A sink whose steps go to a tracker. Training never waits for it: only `close` does, for a while."""

    def __init__(
        self,
        open_tracker: Callable[[], Tracker],
        *,
        name: str,
        retry_seconds: float = _FIRST_RETRY_SECONDS,
        close_seconds: float = _CLOSE_SECONDS,
    ) -> None:
        """`open_tracker` is called in the thread, and again until it succeeds."""
        self._open_tracker = open_tracker
        self._name = name
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._waiting: deque[StepRecord] = deque()
        self._num_dropped = 0
        self._num_refused = 0
        self._is_closing = self._has_failed = False
        self._changed = threading.Condition()
        self._done = in_thread(self._deliver, name=f"tracker-{name}")

    def write(self, record: StepRecord) -> None:
        """Take a step; it is delivered later."""
        with self._changed:
            self._waiting.append(record)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self._num_dropped += 1
            self._changed.notify_all()

    def close(self, *, has_failed: bool = False) -> None:
        """Wait a while until everything is delivered; the log says what was not."""
        with self._changed:
            self._is_closing, self._has_failed = True, has_failed
            self._changed.notify_all()
        try:
            self._done.result(timeout=self._close_seconds)
        except TimeoutError:
            logger.warning("%s does not answer: the last steps may be missing there", self._name)
        with self._changed:
            num_missing = len(self._waiting) + self._num_dropped + self._num_refused
        if num_missing:
            logger.warning("%s did not get %d steps; metrics.jsonl has all", self._name, num_missing)

    def _deliver(self) -> None:
        """Open the tracker and deliver until closing, and continue with the same step after an outage."""
        tracker: Tracker | None = None
        pause = self._retry_seconds
        while True:
            try:
                tracker = tracker or self._open_tracker()
                record = self._next_record()
                if record is None:
                    tracker.close(has_failed=self._has_failed)
                    return
                self._write(tracker, record)
            except Exception as error:  # of a service or its library: any kind, and none may end the run
                if self._is_closing:
                    logger.warning("%s does not take the run: %s", self._name, error)
                    return
                logger.warning("%s does not take the run, next try in %.0f s: %s", self._name, pause, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, timeout=pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
                continue
            with self._changed:
                # it may have been dropped meanwhile
                if self._waiting and self._waiting[0] is record:
                    self._waiting.popleft()
            pause = self._retry_seconds

    def _write(self, tracker: Tracker, record: StepRecord) -> None:
        """Log a step, or continue without it where the step itself is refused. Raises what an outage
        raises."""
        try:
            tracker.write(record)
        except (ValueError, TypeError) as error:
            if isinstance(error, OSError):  # an answer that is no JSON, for requests
                raise
            with self._changed:
                self._num_refused += 1
            if self._num_refused == 1:
                logger.warning(
                    "%s does not take step %d and continues without it: %s", self._name, record.step, error
                )

    def _next_record(self) -> StepRecord | None:
        """The oldest step that is not delivered; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return self._waiting[0] if self._waiting else None
