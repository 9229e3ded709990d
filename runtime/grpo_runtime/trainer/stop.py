"""A request to stop, remembered until the next step boundary."""

import signal
from types import FrameType


class StopRequestedError(Exception):
    """A rank was asked to stop. Control flow, not a failure: the run stands at its last step boundary."""


class StopRequest:
    """Set by SIGTERM and SIGINT once `listen` was called."""

    def __init__(self) -> None:
        self.is_set = False

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
