"""Starts children of `fake_child` as forks of one process that has imported torch.

Importing it takes longer than most of these children live. A fork is a child of this process as any other:
the one between it and the server ends at once, and this process adopts what that leaves.
"""

import os
import socket
import subprocess
import sys
import threading
from multiprocessing import Pipe

from grpo_runtime.engines.colocated.engine_process import ChildProcess, StartedProcess
from grpo_runtime.process.lifetime import adopt_orphans

_PARENT_BYTES = 64
START_SECONDS = 120.0


class AdoptedProcess:
    """What `ChildProcess` uses of a Popen, for a child that another process has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class ChildServer:
    """The process that forks children; it starts with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start_child(self) -> StartedProcess:
        """One more child, as `spawned` starts it."""
        ours, theirs = Pipe()
        with theirs, self._lock:
            if self._process is None:
                self._start()
            adopt_orphans()
            try:
                parent = str(os.getpid()).encode().ljust(_PARENT_BYTES)
                socket.send_fds(self._socket, [parent], [theirs.fileno()])
                answer = self._socket.recv(_PARENT_BYTES)
                assert answer, "the process that forks children has ended: see its stderr"
                pid = int(answer)
            finally:
                adopt_orphans(is_on=False)
        return StartedProcess(ChildProcess(AdoptedProcess(pid)), ours)  # type: ignore[arg-type]

    def _start(self) -> None:
        self._socket, there = socket.socketpair()
        self._socket.settimeout(START_SECONDS)
        with there:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(there.fileno())],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )

    def close(self) -> None:
        """End it; children that still run are ended by their tests."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._socket.close()
            self._process = None


def serve(requests: socket.socket) -> None:
    """Fork a child for each file descriptor that comes. A child answers with its process id."""
    import fake_child

    while True:
        parent, descriptors, *_ = socket.recv_fds(requests, _PARENT_BYTES, 1)
        if not parent:
            return
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork() == 0:
                os.close(write)
                # until it is adopted: both others have closed their ends
                os.read(read, 1)
                os.close(read)
                os.setpgid(0, 0)
                requests.send(str(os.getpid()).encode())
                requests.close()
                fake_child.run([str(descriptors[0]), parent.decode()])
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in (read, write, *descriptors):
            os.close(descriptor)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
