"""What the end of an attempt means for a local job: the operator's rules, by the same table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode, exit_policy
from grpo_api.contract.progress import Progress
from grpo_api.contract.retries import got_on, newest_step, pause_seconds
from grpo_runtime.termination import Outcome

_ENGINE_SETTLES_SECONDS = 60.0
"""An engine that lived shorter than this did not do any good."""


@dataclass(frozen=True)
class Ending:
    """How one process ended, in its own words where it left some."""

    name: str
    outcome: Outcome


class Next(Enum):
    """What follows an attempt."""

    DONE = "done"
    STOPPED = "stopped"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """What follows, because of whom; nobody when every step is done."""

    next: Next
    because: Ending | None = None
    is_used_up: bool = False
    """Whether it would have been retried, had failurePolicy.maxRestarts been higher."""


def judge_attempt(
    endings: Sequence[Ending], *, restarts: int, max_restarts: int, is_stop_requested: bool
) -> Verdict:
    """The verdict on an attempt whose processes ended in the order of `endings`.

    `restarts` are those so far, all counted. A cause ranks above its consequences: what says itself that a
    retry is no use, then what ended by itself, then what only lost others or was asked to stop.
    """
    cause = min(
        (ending for ending in endings if ending.outcome.exit_code != ExitCode.DONE),
        key=_rank,
        default=None,
    )
    if cause is None:
        return Verdict(Next.DONE)
    policy = exit_policy(cause.outcome.exit_code)
    if not policy.is_retried:
        return Verdict(Next.FAILED, cause)
    if is_stop_requested:
        is_orderly = cause.outcome.exit_code == ExitCode.TERMINATED
        return Verdict(Next.STOPPED if is_orderly else Next.FAILED, cause)
    # nothing is evicted here: a stop that nobody asked for is a failure like others
    if restarts >= max_restarts:
        return Verdict(Next.FAILED, cause, is_used_up=True)
    return Verdict(Next.RETRY, cause)


@dataclass(frozen=True)
class FailureRow:
    """Failed attempts since one got on, which the pause before the next grows with."""

    failures: int = 0
    saved_step: int | None = None
    """Newest checkpoint that an attempt so far told of."""

    def after(self, progress: Progress | None, *, ran_seconds: float) -> Self:
        """The row when one more attempt has failed, whose last report was `progress`."""
        saved_step = None if progress is None else progress.checkpoint_step
        # what it went on from is not its own: a command before this one may have saved it
        resumed_from_step = None if progress is None else progress.resumed_from_step
        saved_before = newest_step(self.saved_step, resumed_from_step)
        has_got_on = got_on(ran_seconds=ran_seconds, saved_step=saved_step, saved_before=saved_before)
        failures = 1 if has_got_on else self.failures + 1
        return type(self)(failures, newest_step(saved_before, saved_step))


def engine_delay(*, lived_seconds: float, short_lives: int) -> float:
    """Seconds before an engine is started again: none, unless it never lives long.

    `short_lives` are those in a row before this one.
    """
    return pause_seconds(short_lives + 1) if is_short(lived_seconds) else 0.0


def is_short(lived_seconds: float) -> bool:
    """Whether an engine ended about as soon as it had started."""
    return lived_seconds < _ENGINE_SETTLES_SECONDS


def _rank(ending: Ending) -> int:
    outcome = ending.outcome
    if not exit_policy(outcome.exit_code).is_retried:
        return 0
    is_effect = outcome.exit_code == ExitCode.TERMINATED or outcome.reason == PEER_LOST_REASON
    return 2 if is_effect else 1
