"""Rules of attempts that the operator and local mode share: when one is at work. Pure."""

from grpo_api.contract.progress import Progress, TrainerState

WORKING_STATES = frozenset({TrainerState.TRAINING, TrainerState.STOPPING, TrainerState.DONE})
"""States of a trainer that makes steps, or has made them."""


def has_begun(progress: Progress) -> bool:
    """Whether this attempt got to work: it makes its first step, or made one. Before that it loads models
    and waits, and the startup deadline is its measure, not the stall timeout."""
    return progress.state in WORKING_STATES or progress.step > (progress.resumed_from_step or 0)
