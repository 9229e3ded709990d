"""What two ranks know of each other once they have met."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from grpo_runtime.local.environments import free_ports

LIMIT_SECONDS = 120.0


def test_both_ranks_know_of_each_engine_what_it_has_finished_and_whether_it_is_started_again() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, str(Path(__file__).with_name("meeting_ranks.py")), str(port)]
    ranks = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = ranks.communicate(timeout=LIMIT_SECONDS)[0]
        assert (ranks.returncode, said) == (0, "3 40 False True\n" * 2)
    finally:
        if ranks.poll() is None:
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
