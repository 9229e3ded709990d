"""A local job from start to end: attempts of the trainer, engines, and requests to stop."""

import signal
import time

from grpo_api.judge.attempts import WithoutProgress, pause_seconds
from grpo_api.judge.clocks import has_made_a_step
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import ErrorSignature
from grpo_runtime.local.attempts import AttemptLimits, AttemptOutcome, Next, outcome_of_attempt
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.engine_processes import EngineProcesses
from grpo_runtime.local.process_table import ProcessExit
from grpo_runtime.local.screen import ProgressDisplay, Screen
from grpo_runtime.local.trainer_attempt import GRACE_SECONDS, TrainerAttempt
from grpo_runtime.supervisor.rank_processes import wait_for_signal

POLL_SECONDS = 0.25
"""How often the trainer's files are read."""
_ENGINES_MAY_FINISH_SECONDS = 15.0


class EndedAtOnceError(Exception):
    """Asked to stop a second time."""


class LocalJob:
    """Runs the processes of one job. The stop signals and SIGCHLD must be blocked in this process."""

    def __init__(
        self, context: LocalContext, spec: GRPOJobSpec, screen: Screen, *, stop_signals: set[signal.Signals]
    ) -> None:
        self._context = context
        self._spec = spec
        self._screen = screen
        self._stop_signals = stop_signals
        self._engines = EngineProcesses(context)
        self._display = ProgressDisplay(
            context.workspace.output, screen, total_steps=context.run_config.total_steps
        )
        self._state = context.workspace.state()
        self._past = WithoutProgress()
        self._has_worked = False
        """Whether an attempt of this command has made a step: a command before may have had another spec."""
        self._last_error: ErrorSignature | None = None
        self._is_stop_requested = False
        self._is_next_stop_at_once = False

    def run(self) -> AttemptOutcome:
        """Train to the end, a stop or a failure; every process that was started has ended then.

        Raises EndedAtOnceError when asked to stop twice.
        """
        try:
            self._engines.start(now=time.monotonic())
            outcome = self._attempt()
            while outcome.next is Next.RETRY:
                outcome = self._pause(outcome) or self._attempt()
            self._end_engines()
        finally:
            self._screen.close()
            self._context.processes.end_all()
        return outcome

    def _attempt(self) -> AttemptOutcome:
        """Run one attempt of the trainer; returns what follows from its end."""
        self._state = self._state.model_copy(update={"attempt": self._state.attempt + 1})
        self._context.workspace.remember(self._state)
        attempt = TrainerAttempt(
            self._context,
            number=self._state.attempt,
            rollout_ports=list(self._engines.ports),
            has_lowered_budget=self._state.has_lowered_budget,
        )
        began_at = time.monotonic()
        self._watch(attempt, began_at=began_at)
        self._display.update(attempt.progress)
        self._context.processes.end_orphans()
        self._past = self._past.with_progress(attempt.progress)
        if attempt.progress is not None and has_made_a_step(attempt.progress):
            self._has_worked = True
        outcome = outcome_of_attempt(
            attempt.outcomes,
            attempt=self._state.attempt,
            past=self._past,
            max_restarts=self._spec.failure_policy.max_restarts,
            is_stop_requested=self._is_stop_requested,
            rules=self._spec.failure_policy.failure_rules,
            has_worked=self._has_worked,
            error_before=self._last_error,
        )
        self._last_error = outcome.cause.error if outcome.cause else None
        if outcome.next is Next.RETRY and outcome.cause is not None:
            follows = outcome.cause.consequence
            self._past = self._past.with_end(is_counted=follows.is_counted)
            is_lowered = self._state.has_lowered_budget or follows.lowers_budget
            self._state = self._state.model_copy(update={"has_lowered_budget": is_lowered})
        self._state = self._state.model_copy(update={"is_done": outcome.next is Next.DONE})
        self._context.workspace.remember(self._state)
        return outcome

    def _watch(self, attempt: TrainerAttempt, *, began_at: float) -> None:
        """Return when all trainers of an attempt have ended; end them when it can no longer succeed."""
        limits = AttemptLimits(
            self._spec, num_engines=len(self._engines.names), now=began_at, has_worked=self._has_worked
        )
        while not attempt.is_over:
            self._turn(attempt)
            progress, now = attempt.progress, time.monotonic()
            num_current = progress.engines.current if progress else 0
            errors = self._engines.user_errors(since=began_at, num_current=num_current)
            cause = limits.exceeded(progress, errors, now=now)
            if cause is not None and not (self._is_stop_requested or attempt.is_over):
                attempt.fail(cause)

    def _pause(self, outcome: AttemptOutcome) -> AttemptOutcome | None:
        """Say why the next attempt follows, and wait before it if several in a row have failed.

        Returns the outcome if the job is asked to stop meanwhile.
        """
        assert outcome.cause is not None
        delay = pause_seconds(self._past.num_failures, num_disruptions=self._past.num_disruptions)
        self._screen.say(
            f"attempt {self._state.attempt + 1} follows{f' in {delay:.0f} s' if delay else ''} because: "
            f"{outcome.cause.why.message}; log {self._context.workspace.log(outcome.cause.ended.name)}"
        )
        until = time.monotonic() + delay
        while time.monotonic() < until and not self._is_stop_requested:
            self._turn(None)
        return AttemptOutcome(Next.STOPPED) if self._is_stop_requested else None

    def _turn(self, attempt: TrainerAttempt | None) -> None:
        """Wait for a signal, for a moment at most, and do what is due."""
        wakes = [self._engines.wakes_at, attempt.wakes_at if attempt else None]
        until = min([time.monotonic() + POLL_SECONDS, *(at for at in wakes if at is not None)])
        arrived = wait_for_signal({*self._stop_signals, signal.SIGCHLD}, until=until)
        if arrived in self._stop_signals:
            self._stop(attempt, is_hang_up=arrived == signal.SIGHUP)
        now = time.monotonic()
        for process_exit in self._context.processes.collect_exits():
            self._ended(process_exit, attempt, now=now)
        if attempt is not None:
            attempt.tick(now=now)
            self._display.update(attempt.progress)
        if not self._is_stop_requested:
            self._engines.tick(now=now)

    def _ended(self, process_exit: ProcessExit, attempt: TrainerAttempt | None, *, now: float) -> None:
        if process_exit.name not in self._engines.names:
            assert attempt is not None  # trainers run only during their attempt
            attempt.ended(process_exit, now=now)
        elif not self._is_stop_requested:
            self._engines.ended(process_exit, now=now)

    def _stop(self, attempt: TrainerAttempt | None, *, is_hang_up: bool) -> None:
        # a terminal that is closed may send SIGHUP twice, or beside a SIGTERM: that is no second request
        if not is_hang_up:
            if self._is_next_stop_at_once:
                raise EndedAtOnceError
            self._is_next_stop_at_once = True
        self._is_stop_requested = True
        if attempt is not None:
            attempt.stop(now=time.monotonic())
        self._screen.say(
            "stopping: the trainer saves a checkpoint at the next step boundary, within "
            f"{GRACE_SECONDS:.0f} s; once more ends it at once"
        )

    def _end_engines(self) -> None:
        self._context.processes.send(signal.SIGTERM, *self._engines.names)
        deadline = time.monotonic() + _ENGINES_MAY_FINISH_SECONDS
        while self._context.processes.names and time.monotonic() < deadline:
            arrived = wait_for_signal({*self._stop_signals, signal.SIGCHLD}, until=deadline)
            if arrived in self._stop_signals and self._is_stop_requested:
                return
            self._context.processes.collect_exits()
