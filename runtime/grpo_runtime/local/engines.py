"""The rollout engines of a local job: one process each, started again whenever they end."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.local.attempts import Ending, engine_delay, is_short
from grpo_runtime.local.environments import LOOPBACK, free_ports, rollout_environment
from grpo_runtime.local.last_words import last_words
from grpo_runtime.local.processes import Death
from grpo_runtime.local.scene import Scene


@dataclass
class _Engine:
    port: int
    started_at: float = 0.0
    short_lives: int = 0
    due_at: float | None = None
    """When it is started again; None while it runs."""


class Engines:
    """`rollout.replicas` engines in mode Disaggregated, none otherwise. Each keeps its port for life, which
    is how the trainer finds it again; `now` is on the monotonic clock."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        number = scene.run.topology.rollout_replicas if scene.run.mode is Mode.DISAGGREGATED else 0
        ports = free_ports(number)
        self._engines = {f"rollout-{index}": _Engine(port) for index, port in enumerate(ports)}

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

    def ended(self, death: Death, *, now: float) -> Ending | None:
        """Plan the next start of an engine; returns its ending instead when a retry is no use."""
        engine = self._engines[death.name]
        log = self._scene.workspace.termination_log(death.name)
        ending = Ending(death.name, last_words(death, termination_log=log))
        if death.exit_code == ExitCode.USER_ERROR:
            return ending
        lived = now - engine.started_at
        engine.due_at = now + engine_delay(lived_seconds=lived, short_lives=engine.short_lives)
        engine.short_lives = engine.short_lives + 1 if is_short(lived) else 0
        delay = engine.due_at - now
        self._scene.say(
            f"{death.name} is started again{f' in {delay:.0f} s' if delay else ''}: "
            f"{ending.outcome.message}; log {self._scene.workspace.log(death.name)}"
        )
        return None

    def tick(self, *, now: float) -> None:
        """Start those that are due."""
        for name, engine in self._engines.items():
            if engine.due_at is not None and now >= engine.due_at:
                self._start(name, now=now)

    def _start(self, name: str, *, now: float) -> None:
        engine, scene = self._engines[name], self._scene
        engine.started_at, engine.due_at = now, None
        cache = scene.fresh_cache(name)
        words = scene.fresh_termination_log(name)
        scene.household.start(
            name,
            [
                *scene.programs.rollout,
                *("--host", LOOPBACK, "--port", str(engine.port), "--termination-log", str(words)),
            ],
            {**scene.environment, **rollout_environment(scene.workspace, name=name, cache=cache)},
            log=scene.workspace.log(name),
        )
