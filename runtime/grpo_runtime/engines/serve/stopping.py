"""How process 1 of a rollout pod ends on SIGTERM, during the start too.

vLLM's own handler raises an exception wherever the start is; event loops, imports and clean-up code swallow
it, and the pod would continue until it is killed. Before anything is served there is nothing to finish, so
the process ends at once; a serving engine shuts down in vLLM's way, with a limit."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVarTuple

import uvloop

from grpo_api.contract.exit_codes import ExitCode

SHUTDOWN_SECONDS = 10.0
_Ts = TypeVarTuple("_Ts")


class Stopping:
    """Handles SIGTERM from `listen` on. `write_termination_message` says that the process was asked to
    stop."""

    def __init__(self, write_termination_message: Callable[[], object]) -> None:
        self.is_requested = False
        self._write_termination_message = write_termination_message

    def listen(self) -> None:
        """End at once on SIGTERM, until a server's own handler replaces this one."""
        signal.signal(signal.SIGTERM, lambda *_: self._end_now())

    def new_loop(self) -> uvloop.Loop:
        """An event loop that notes the stop signals which its server handles, and limits the shutdown."""
        stopping = self

        class Loop(uvloop.Loop):
            def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
                def handle() -> None:
                    stopping._begin()
                    callback(*args)

                super().add_signal_handler(sig, handle)

        return Loop()

    def _begin(self) -> None:
        if not self.is_requested:
            self.is_requested = True
            limit = threading.Timer(SHUTDOWN_SECONDS, self._end_now)
            limit.daemon = True
            limit.start()

    def _end_now(self) -> None:
        self.is_requested = True
        try:
            for child in multiprocessing.active_children():
                child.kill()
            self._write_termination_message()
        finally:
            # without clean-up, which may hang; also after an error, because the log call that the signal
            # interrupted may hold the lock of standard error
            os._exit(ExitCode.TERMINATED)
