"""What two ranks know of each other once they have met."""

import subprocess
import sys
from pathlib import Path

from grpo_runtime.local.environments import free_ports

LIMIT_SECONDS = 120.0


def test_both_ranks_know_of_each_engine_what_it_has_finished_and_whether_it_is_started_again() -> None:
    (port,) = free_ports(1)
    script = str(Path(__file__).with_name("meeting_ranks.py"))
    processes = [
        subprocess.Popen([sys.executable, script, str(rank), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert said == ["3 40 False True\n"] * 2
    assert [process.returncode for process in processes] == [0, 0]
