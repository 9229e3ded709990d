"""The log of a process in which an engine runs too, whose libraries set the root logger to what they like."""

import logging


def log_to_stderr() -> None:
    """Let the loggers of this package write to standard error, from level INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("grpo_runtime")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
