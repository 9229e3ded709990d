"""A rank with a fake engine in a process of its own: prints that process's id and waits to be killed."""

import os
import signal
import sys
from pathlib import Path

from grpo_runtime.engines.colocated.child_engine import ChildEngine
from grpo_runtime.engines.colocated.child_liveness import ChildLimits
from grpo_runtime.engines.colocated.engine_process import spawned

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    plan = folder / "plan"
    plan.write_text("[]")
    child = ChildEngine(
        spawned((sys.executable, str(Path(__file__).with_name("fake_child.py"))), dict(os.environ)),
        message={"plan": str(plan), "starts": str(folder / "starts"), "logprobs": []},
        limits=ChildLimits(),
    )
    print(child.pid, flush=True)
    signal.pause()
