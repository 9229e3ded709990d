"""What a rank imports while it runs, imported by a process of tests before it forks its ranks."""

import contextlib
import sys

from grpo_runtime.process.lasting_imports import lasting_imports


def import_for_every_rank() -> None:
    """What every run needs at its beginning and at its end."""
    with lasting_imports():
        import grpo_runtime.model.tiny
        import grpo_runtime.report.page.page
        import grpo_runtime.trainer.strategy.fsdp2  # noqa: F401


def import_for_zero() -> None:
    """DeepSpeed, which takes seconds and is for few runs. It prints, and stdout is for answers."""
    with lasting_imports(), contextlib.redirect_stdout(sys.stderr):
        import grpo_runtime.trainer.strategy.zero.strategy  # noqa: F401
