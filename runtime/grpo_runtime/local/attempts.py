"""What the end of an attempt means for a local job: the operator's rules, by the same table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from grpo_api.contract.exit_codes import PEER_LOST_REASON, ExitCode, exit_policy
from grpo_runtime.termination import Outcome

_FIRST_DELAY_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 60.0
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


def attempt_delay(failures: int) -> float:
    """Seconds before the attempt that follows so many failures in a row: none after one, then ever longer."""
    if failures < 2:
        return 0.0
    return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(failures - 2, 10))


def engine_delay(*, lived_seconds: float, short_lives: int) -> float:
    """Seconds before an engine is started again: none, unless it never lives long.

    `short_lives` are those in a row before this one.
    """
    if is_short(lived_seconds) and short_lives:
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(short_lives - 1, 10))
    return 0.0


def is_short(lived_seconds: float) -> bool:
    """Whether an engine ended about as soon as it had started."""
    return lived_seconds < _ENGINE_SETTLES_SECONDS


def _rank(ending: Ending) -> int:
    outcome = ending.outcome
    if not exit_policy(outcome.exit_code).is_retried:
        return 0
    is_effect = outcome.exit_code == ExitCode.TERMINATED or outcome.reason == PEER_LOST_REASON
    return 2 if is_effect else 1
