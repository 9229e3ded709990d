"""How a rollout pod's process 1 ends when it is asked to, at whatever moment.

vLLM listens by raising an exception wherever the start happens to be; event loops, imports and clean-up code
swallow it, and the pod would wait out its whole grace period. While nothing is served yet there is nothing to
finish, so we end at once; a serving engine ends in vLLM's orderly way, with a limit.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import uvloop

from grpo_api.contract.exit_codes import ExitCode

ORDERLY_STOP_SECONDS = 10.0


class Stopping:
    """Listens for SIGTERM from `listen` on. `leave_word` writes the termination message."""

    def __init__(self, leave_word: Callable[[], None]) -> None:
        self.is_requested = False
        self._leave_word = leave_word

    def listen(self) -> None:
        """End at once on SIGTERM, until a server's own handler replaces this one."""
        signal.signal(signal.SIGTERM, lambda *_: self._end_now())

    def new_loop(self) -> uvloop.Loop:
        """An event loop that notes the stop signals its server handles, and limits what follows."""
        stopping = self

        class Loop(uvloop.Loop):
            def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
                def heard() -> None:
                    stopping._begin()
                    callback(*args)

                super().add_signal_handler(sig, heard)

        return Loop()

    def _begin(self) -> None:
        if not self.is_requested:
            self.is_requested = True
            limit = threading.Timer(ORDERLY_STOP_SECONDS, self._end_now)
            limit.daemon = True
            limit.start()

    def _end_now(self) -> None:
        self.is_requested = True
        try:
            for child in multiprocessing.active_children():
                child.kill()
            self._leave_word()
        finally:
            # no clean-up: it is what may hang. Also after an error: a signal that comes in the middle of a
            # log line finds standard error busy
            os._exit(ExitCode.TERMINATED)
