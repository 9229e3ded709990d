"""A local job from start to end: attempts of the trainer, engines, stop requests, and the last sentence."""

import signal
import time

from grpo_api.contract.retries import pause_seconds
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_runtime.local.attempts import Ending, FailureRow, Next, Verdict, judge_attempt
from grpo_runtime.local.deadlines import Deadlines
from grpo_runtime.local.engines import Engines
from grpo_runtime.local.follow import Follower
from grpo_runtime.local.processes import Death
from grpo_runtime.local.scene import Scene
from grpo_runtime.local.screen import Screen
from grpo_runtime.local.trainers import GRACE_SECONDS, Attempt
from grpo_runtime.trainer.gang import wait_for_signal

LOOK_SECONDS = 0.25
"""How often the trainer's files are looked at."""
_ENGINES_MAY_FINISH_SECONDS = 15.0


class EndedAtOnceError(Exception):
    """Asked to stop a second time: control flow."""


class LocalJob:
    """Runs the processes of one job. The stop signals and SIGCHLD must be blocked in this process."""

    def __init__(self, scene: Scene, spec: GRPOJobSpec, screen: Screen, *, stop_signals: set[signal.Signals]):
        self._scene = scene
        self._spec = spec
        self._screen = screen
        self._stop_signals = stop_signals
        self._engines = Engines(scene)
        self._follower = Follower(scene.workspace.output, screen, total_steps=scene.run.algorithm.steps)
        self._state = scene.workspace.state()
        self._restarts = 0
        self._row = FailureRow()
        self._is_stop_requested = False
        self._is_next_stop_at_once = False
        self._engine_ending: Ending | None = None

    def run(self) -> Verdict:
        """Train to the end, a stop or a failure; nothing that was started is left then.

        Raises EndedAtOnceError when asked to stop twice.
        """
        try:
            self._engines.start(now=time.monotonic())
            verdict = self._attempt()
            while verdict.next is Next.RETRY:
                verdict = self._pause(verdict) or self._attempt()
            self._end_engines()
        finally:
            self._screen.close()
            self._scene.household.end_all()
        return verdict

    def _attempt(self) -> Verdict:
        """One attempt of the trainer, and what follows from its end."""
        self._state = self._state.model_copy(update={"attempt": self._state.attempt + 1})
        self._scene.workspace.remember(self._state)
        attempt = Attempt(self._scene, number=self._state.attempt, rollout_ports=list(self._engines.ports))
        began_at = time.monotonic()
        deadlines = Deadlines(self._spec, now=began_at)
        while not attempt.is_over:
            self._turn(attempt)
            missed = deadlines.missed(attempt.progress, now=time.monotonic())
            if self._engine_ending is not None:
                attempt.give_up(self._engine_ending)
            elif missed is not None and not self._is_stop_requested and not attempt.is_over:
                attempt.give_up(Ending("trainer-0", missed))
        self._follow(attempt)
        self._scene.household.end_orphans()
        verdict = judge_attempt(
            attempt.endings,
            restarts=self._restarts,
            max_restarts=self._spec.failure_policy.max_restarts,
            is_stop_requested=self._is_stop_requested,
        )
        if verdict.next is Next.RETRY:
            self._restarts += 1
            self._row = self._row.after(attempt.progress, ran_seconds=time.monotonic() - began_at)
        self._state = self._state.model_copy(update={"is_done": verdict.next is Next.DONE})
        self._scene.workspace.remember(self._state)
        return verdict

    def _pause(self, verdict: Verdict) -> Verdict | None:
        """Say why the next attempt follows, and wait before it where several have failed.

        Gives the verdict that makes it unneeded, if one comes up.
        """
        assert verdict.because is not None
        delay = pause_seconds(self._row.failures)
        self._screen.say(
            f"attempt {self._state.attempt + 1} follows{f' in {delay:.0f} s' if delay else ''} because: "
            f"{verdict.because.outcome.message}; log {self._scene.workspace.log(verdict.because.name)}"
        )
        until = time.monotonic() + delay
        while time.monotonic() < until and not self._is_stop_requested and self._engine_ending is None:
            self._turn(None)
        if self._is_stop_requested:
            return Verdict(Next.STOPPED)
        return None if self._engine_ending is None else Verdict(Next.FAILED, self._engine_ending)

    def _turn(self, attempt: Attempt | None) -> None:
        """Wait for the next thing to happen, for a moment, and do what is due."""
        wakes = [self._engines.wakes_at, attempt.wakes_at if attempt else None]
        until = min([time.monotonic() + LOOK_SECONDS, *(at for at in wakes if at is not None)])
        arrived = wait_for_signal({*self._stop_signals, signal.SIGCHLD}, until=until)
        if arrived in self._stop_signals:
            self._stop(attempt, is_hang_up=arrived == signal.SIGHUP)
        now = time.monotonic()
        for death in self._scene.household.reap():
            self._ended(death, attempt, now=now)
        if attempt is not None:
            attempt.tick(now=now)
            self._follow(attempt)
        if not self._is_stop_requested:
            self._engines.tick(now=now)

    def _ended(self, death: Death, attempt: Attempt | None, *, now: float) -> None:
        if death.name not in self._engines.names:
            assert attempt is not None  # trainers live within their attempt
            attempt.ended(death, now=now)
        elif not self._is_stop_requested:
            self._engine_ending = self._engine_ending or self._engines.ended(death, now=now)

    def _stop(self, attempt: Attempt | None, *, is_hang_up: bool) -> None:
        # a closed terminal hangs up more than once, or beside a SIGTERM: by that nobody asks again
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

    def _follow(self, attempt: Attempt) -> None:
        self._follower.look(attempt.progress)

    def _end_engines(self) -> None:
        self._scene.household.send(signal.SIGTERM, *self._engines.names)
        deadline = time.monotonic() + _ENGINES_MAY_FINISH_SECONDS
        while self._scene.household.names and time.monotonic() < deadline:
            arrived = wait_for_signal({*self._stop_signals, signal.SIGCHLD}, until=deadline)
            if arrived in self._stop_signals and self._is_stop_requested:
                return
            self._scene.household.reap()
