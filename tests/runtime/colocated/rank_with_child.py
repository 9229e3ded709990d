"""A rank with a fake engine in a process of its own: prints that process's id and waits to be killed."""

import os
import signal
import sys
from pathlib import Path

from grpo_runtime.colocated.child_engine import ChildCommand, ChildEngine
from grpo_runtime.colocated.child_liveness import ChildLimits

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    files = {"had": str(folder / "had"), "starts": str(folder / "starts")}
    child = ChildEngine(
        ChildCommand(
            (sys.executable, str(Path(__file__).with_name("fake_child.py"))),
            dict(os.environ),
            {"accidents": [], "logprobs": [], **files},
        ),
        limits=ChildLimits(),
    )
    print(child.pid, flush=True)
    signal.pause()
