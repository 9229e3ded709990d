"""Aborts a blocking call at its deadline: a call of NCCL cannot be interrupted in any other way."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo_runtime.errors import first_line
from grpo_runtime.weight_sync.interface import GroupBrokenError

log = logging.getLogger(__name__)


class Watchdog:
    """Calls `abort` once, in a thread of its own: when something takes longer than it may, or in `abort_now`.

    One thread at a time does what is watched.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._changed = threading.Condition()
        self._ends_at: float | None = None
        self._has_aborted = False
        threading.Thread(target=self._watch, name="weight-watchdog", daemon=True).start()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Abort what the block does when it takes longer. Raises GroupBrokenError when it was aborted, and
        for a RuntimeError, which is what torch raises."""
        self._end_at(time.monotonic() + seconds)
        failure: RuntimeError | None = None
        try:
            yield
        except RuntimeError as error:
            failure = error
        finally:
            self._end_at(None)
        if self._has_aborted:
            # what was aborted may look as if it had been done
            raise GroupBrokenError(
                f"aborted: no progress for {seconds:g} s, or the group was closed"
            ) from failure
        if failure is not None:
            raise GroupBrokenError(first_line(failure)) from failure

    def abort_now(self) -> None:
        """Abort without waiting for it. Harmless when that was done."""
        with self._changed:
            self._has_aborted = True
            self._changed.notify()

    def _end_at(self, ends_at: float | None) -> None:
        with self._changed:
            self._ends_at = ends_at
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._has_aborted:
                left = None if self._ends_at is None else self._ends_at - time.monotonic()
                if left is not None and left <= 0:
                    self._has_aborted = True
                else:
                    self._changed.wait(left)
        try:
            self._abort()
        except RuntimeError:
            log.warning("a closed group could not be aborted", exc_info=True)
