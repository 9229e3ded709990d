"""When a running attempt of a local job has failed, and what follows from its end: by the rules of
`grpo_api.judge`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.attempts import WithoutProgress, acting_rule, why_final, with_rule
from grpo_api.judge.causes import Cause, cause_of, first_cause
from grpo_api.judge.clocks import Clocks, stalled
from grpo_api.judge.engines import EngineAbsence, errors_end_job
from grpo_api.v1alpha1.spec import FailedRole, FailureAction, FailureRule, GRPOJobSpec
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.process_table import ProcessOutcome


class Next(Enum):
    """What follows an attempt."""

    DONE = "done"
    STOPPED = "stopped"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True)
class AttemptOutcome:
    """What follows an attempt, and which process was the cause; None when every step is done."""

    next: Next
    cause: Cause[ProcessOutcome] | None = None
    final: ReasonMessage | None = None
    """Why no other attempt follows, of one that failed."""


def outcome_of_attempt(
    outcomes: Sequence[ProcessOutcome],
    *,
    attempt: int,
    past: WithoutProgress,
    max_restarts: int,
    is_stop_requested: bool,
    rules: Sequence[FailureRule] | None = None,
    has_worked: bool = False,
    error_before: ErrorSignature | None = None,
) -> AttemptOutcome:
    """The outcome of an attempt whose processes ended in the order of `outcomes`.

    `past` are the attempts without progress before it, `has_worked` is as in `exit_policy`, and
    `error_before` is what ended the attempt before it. No node evicts a local process: a stop that was not
    requested counts as a failure like others. Of the `rules` of failurePolicy one with the action Suspend
    ends the run, which continues when it is started again.
    """
    cause = first_cause(
        cause_of(outcome.termination, outcome, has_worked=has_worked)
        for outcome in outcomes
        if outcome.termination.exit_code != ExitCode.DONE
    )
    if cause is None:
        return AttemptOutcome(Next.DONE)
    if is_stop_requested and cause.consequence.is_retried:
        was_stopped = cause.exit_code == ExitCode.TERMINATED
        return AttemptOutcome(Next.STOPPED if was_stopped else Next.FAILED, cause, cause.why)
    role = FailedRole.ROLLOUT if cause.ended.name.startswith(FailedRole.ROLLOUT) else FailedRole.TRAINER
    rule = acting_rule(rules, cause, role=role, attempt=attempt)
    if rule is not None:
        cause = with_rule(cause, rule)
    if rule is not None and rule.action is FailureAction.SUSPEND:
        return AttemptOutcome(Next.FAILED, cause, cause.why)
    final = why_final(cause, attempt=attempt, past=past, max_restarts=max_restarts, error_before=error_before)
    return AttemptOutcome(Next.RETRY if final is None else Next.FAILED, cause, final)


class AttemptLimits:
    """The startup deadline, the stall timeout and the rule about engines' errors, for one attempt."""

    def __init__(self, spec: GRPOJobSpec, *, num_engines: int, now: float, has_worked: bool = False) -> None:
        """The attempt begins at `now` (monotonic); `has_worked` is as in `exit_policy`, of those before."""
        self._startup_seconds = spec.startup_deadline_seconds
        self._stall_seconds = spec.stall_timeout_seconds
        self._num_engines = num_engines
        self._has_worked = has_worked
        self._clocks = Clocks.begin(now)
        self._absence = EngineAbsence()

    def exceeded(
        self, progress: Progress | None, engine_errors: Sequence[ProcessOutcome] = (), *, now: float
    ) -> ProcessOutcome | None:
        """What ends the attempt, given its newest report; None while nothing does.

        `engine_errors` are engines that ended with 40 during the attempt and are not back yet.
        """
        self._clocks = self._clocks.updated(progress, now=now)
        if progress is not None:
            self._absence = self._absence.updated(progress, now=now)
        self._has_worked = self._has_worked or self._clocks.has_begun
        is_fatal = errors_end_job(
            num_errors=len(engine_errors),
            has_others=len(engine_errors) < self._num_engines,
            is_before_first_step=not self._has_worked,
            absence=self._absence,
        )
        if is_fatal:
            return engine_errors[0]
        missed = self._missed(now=now)
        return None if missed is None else ProcessOutcome("trainer-0", missed)

    def _missed(self, *, now: float) -> TerminationMessage | None:
        """Which deadline was missed. An attempt that began no step is not retried, because the next one would
        fail in the same way; a stall is retried and counted."""
        clocks, progress = self._clocks, self._clocks.progress
        if progress is not None and clocks.has_begun:
            seconds = now - clocks.alive_at
            if seconds < self._stall_seconds:
                return None
            why = stalled(progress, seconds=seconds, limit_seconds=self._stall_seconds)
            return TerminationMessage(exit_code=ExitCode.TRANSIENT, reason=why.reason, message=why.message)
        if now - clocks.starting_since < self._startup_seconds:
            return None
        held_up = f": {progress.message}" if progress and progress.message else ""
        return TerminationMessage(
            exit_code=ExitCode.USER_ERROR,
            reason=Reason.STARTUP_DEADLINE_EXCEEDED,
            message=f"no step began within startupDeadlineSeconds ({self._startup_seconds}){held_up}",
        )
