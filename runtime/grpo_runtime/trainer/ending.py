"""How a run ends on rank 0: what an error leaves time for, where it is reported, and the page of the run."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_runtime.errors import KnownError
from grpo_runtime.process.background import in_thread
from grpo_runtime.report.reporter import Reporter

logger = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
"""How long after an error a rank waits for what its threads still write: records of the journal and a
checkpoint in flight. They write at the same time, so they have these seconds together."""
END_SECONDS = 60.0
"""Until when after an error the page of the run is waited for, behind threads, engines and trackers: it gets
what they leave, so that a page which cannot be written keeps the next attempt waiting no longer."""


class TimeLeft:
    """The seconds that one wait after another may still take after an error."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None

    def of(self, seconds: float) -> float:
        """Seconds that remain of the first `seconds` after the error, which is when this is asked for the
        first time; 0 when they are over."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        return max(self._began + seconds - now, 0.0)


@contextmanager
def closed_after_an_error(reporter: Reporter, *, output_dir: Path) -> Iterator[TimeLeft]:
    """After an error, close the sinks and write the page: a run that failed is one that people look at, and
    no tracker may show it as one that continues. The error rises.

    When a later attempt has begun, nothing is done: the run of a tracker and the page are that attempt's.
    """
    time_left = TimeLeft()
    try:
        yield time_left
    except Exception as error:
        # its time begins here, if no wait has begun it yet
        time_left.of(END_SECONDS)
        if not (isinstance(error, KnownError) and error.is_superseded):
            reporter.fail()
            # before the first step there is nothing to show
            if reporter.progress.latest.step:
                write_page(output_dir, timeout_seconds=time_left.of(END_SECONDS))
        raise


def write_page(output_dir: Path, *, timeout_seconds: float | None = None) -> None:
    """Write the page of the run, which is over: a page that cannot be written is a warning."""

    def write() -> None:
        # Plotly takes seconds to import
        from grpo_runtime.report.page import write_page

        write_page(output_dir)

    try:
        in_thread(write, name="page").result(timeout=timeout_seconds)
    except Exception as error:  # of a volume, or of what the run left: none changes how it ended
        logger.warning("the page of the run was not written: %r", error)
