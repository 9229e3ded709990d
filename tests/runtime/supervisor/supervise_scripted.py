"""A supervisor whose fork server is Python code and whose ranks are shell scripts, a script for `forks`.

`supervise_scripted.py PORT TERMINATION_LOG GRACE_SECONDS RANKS SCRIPT BEFORE`: BEFORE is Python code that is
run first.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_runtime.supervisor.rank_processes import spawned
from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise


def main(arguments: Sequence[str]) -> int:
    """The exit code of the pod."""
    port, log, grace_seconds, ranks, script, before = arguments
    exec(before, {})  # noqa: S102 - the test's own
    options = SupervisorOptions(
        port=int(port),
        grace_seconds=float(grace_seconds),
        termination_log=Path(log),
        start_fork_server=spawned((sys.executable, "-c", ranks, script)),
    )
    code = supervise(os.environ, options=options)
    assert "torch" not in sys.modules, "the supervisor loaded torch"
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
