"""The rollout engines of a local job: one process each, started again whenever it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.judge.engines import is_short_run, restart_pause
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.environments import rollout_environment
from grpo_runtime.local.gpus import seeing
from grpo_runtime.local.ports import LOOPBACK, free_ports
from grpo_runtime.local.process_table import ProcessExit, ProcessOutcome, outcome_of


@dataclass
class _Engine:
    port: int
    gpus: tuple[str, ...] = ()
    """The GPUs that the process sees."""
    started_at: float = 0.0
    num_short_runs: int = 0
    due_at: float | None = None
    """When it is started again; None while it runs."""
    user_error: tuple[float, ProcessOutcome] | None = None
    """When and how it last ended, if that was with exit code 40 and it has not worked since."""


class EngineProcesses:
    """`rollout.replicas` engines in mode Disaggregated, none otherwise.

    An engine that is started again has the same port, which is how the trainer finds it. `now` is on the
    monotonic clock.
    """

    def __init__(self, context: LocalContext) -> None:
        self._context = context
        run_config = context.run_config
        number = run_config.topology.rollout_replicas if run_config.mode is Mode.DISAGGREGATED else 0
        self._engines = {
            f"rollout-{index}": _Engine(port, gpus=context.gpus.engines[index])
            for index, port in enumerate(free_ports(number))
        }

    @property
    def ports(self) -> Sequence[int]:
        """Where they listen."""
        return [engine.port for engine in self._engines.values()]

    @property
    def names(self) -> set[str]:
        """Their processes' names."""
        return set(self._engines)

    @property
    def wakes_at(self) -> float | None:
        """When the next one is to be started again."""
        return min(
            (engine.due_at for engine in self._engines.values() if engine.due_at is not None), default=None
        )

    def start(self, *, now: float) -> None:
        """Start all."""
        for name in self._engines:
            self._start(name, now=now)

    def user_errors(self, *, since: float, num_current: int) -> list[ProcessOutcome]:
        """How engines ended that said after `since` that no retry can help, and that are not back.

        The trainer reports only how many engines are Current, so all are back when all are Current.
        """
        if num_current >= len(self._engines):
            for engine in self._engines.values():
                engine.user_error = None
        found = (engine.user_error for engine in self._engines.values())
        return [outcome for at, outcome in filter(None, found) if at >= since]

    def ended(self, process_exit: ProcessExit, *, now: float) -> None:
        """Plan the next start of an engine."""
        name = process_exit.name
        engine, workspace = self._engines[name], self._context.workspace
        outcome = outcome_of(process_exit, termination_log=workspace.termination_log(name))
        engine.user_error = (now, outcome) if process_exit.exit_code == ExitCode.USER_ERROR else None
        lived = now - engine.started_at
        engine.due_at = now + restart_pause(ran_seconds=lived, num_short_runs=engine.num_short_runs)
        engine.num_short_runs = engine.num_short_runs + 1 if is_short_run(lived) else 0
        delay = engine.due_at - now
        self._context.say(
            f"{name} is started again{f' in {delay:.0f} s' if delay else ''}: "
            f"{outcome.termination.message}; log {workspace.log(name)}"
        )

    def tick(self, *, now: float) -> None:
        """Start those that are due."""
        for name, engine in self._engines.items():
            if engine.due_at is not None and now >= engine.due_at:
                self._start(name, now=now)

    def _start(self, name: str, *, now: float) -> None:
        engine, context = self._engines[name], self._context
        engine.started_at, engine.due_at = now, None
        cache = context.fresh_cache(name)
        termination_log = context.fresh_termination_log(name)
        context.processes.start(
            name,
            [
                *context.programs.rollout,
                *("--host", LOOPBACK, "--port", str(engine.port)),
                *("--termination-log", str(termination_log)),
            ],
            {
                **context.environment,
                **rollout_environment(context.workspace, name=name, cache=cache),
                **seeing(engine.gpus),
            },
            log=context.workspace.log(name),
        )
