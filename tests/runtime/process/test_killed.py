"""What is said of a process that a signal killed."""

import signal

from grpo_runtime.process.killed import was_killed_by


def test_the_signal_is_named_and_sigkill_is_explained() -> None:
    assert was_killed_by(signal.SIGTERM) == "was killed by SIGTERM"
    assert was_killed_by(signal.SIGKILL) == "was killed by SIGKILL; mostly this means out of memory"
