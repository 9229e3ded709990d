"""The trainer of a local job: one supervisor for each node, which start and end together as an attempt."""

import signal

from grpo_api.contract.graces import SUPERVISOR_MARGIN_SECONDS
from grpo_api.contract.progress import Progress
from grpo_runtime.local.attempts import Ending
from grpo_runtime.local.environments import LOOPBACK, free_ports, trainer_environment
from grpo_runtime.local.last_words import last_words
from grpo_runtime.local.processes import Death
from grpo_runtime.local.scene import Scene
from grpo_runtime.report.progress import read_progress

GRACE_SECONDS = 110.0
"""For a checkpoint after a stop was asked for. Longer than in a pod: a step on CPU, at whose end it is saved,
takes long, no node waits to be drained, and a second Ctrl-C ends the wait."""
_OTHERS_MAY_FINISH_SECONDS = 20.0
_CAUSE_MAY_FOLLOW_SECONDS = 1.0
"""A trainer that lost a peer may be seen to end before that peer."""


class Attempt:
    """The trainers of one attempt; `now` is on the monotonic clock."""

    def __init__(self, scene: Scene, *, number: int, rollout_ports: list[int]) -> None:
        self.number = number
        self.endings: list[Ending] = []
        self._scene = scene
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._names = [f"trainer-{index}" for index in range(scene.run.topology.num_nodes)]
        (rendezvous_port,) = free_ports(1)
        for index, name in enumerate(self._names):
            cache = scene.fresh_cache(name)
            environment = trainer_environment(
                scene.run,
                scene.workspace,
                attempt=number,
                index=index,
                cache=cache,
                rollout_ports=rollout_ports,
            )
            scene.household.start(
                name,
                [
                    *scene.programs.trainer,
                    *("--host", LOOPBACK, "--port", "0", "--rendezvous-port", str(rendezvous_port)),
                    *("--grace-seconds", str(GRACE_SECONDS - SUPERVISOR_MARGIN_SECONDS)),
                    *("--termination-log", str(scene.fresh_termination_log(name))),
                ],
                {**scene.environment, **environment},
                log=scene.workspace.log(name),
            )

    @property
    def is_over(self) -> bool:
        """Whether none of its trainers runs any more."""
        return not self.running

    @property
    def running(self) -> set[str]:
        """The names of its trainers that run."""
        return self._scene.household.names & set(self._names)

    @property
    def wakes_at(self) -> float | None:
        """When what is left of it is asked to end, or killed."""
        if not self.running:
            return None
        return self._stop_at if self._kill_at is None else self._kill_at

    @property
    def progress(self) -> Progress | None:
        """What trainer 0 reports; None before it does."""
        return read_progress(self._scene.workspace.cache(self._names[0]) / "run")

    def ended(self, death: Death, *, now: float) -> None:
        """Note how a trainer ended; a moment after a failure the others are asked to end too."""
        log = self._scene.workspace.termination_log(death.name)
        self.endings.append(Ending(death.name, last_words(death, termination_log=log)))
        if death.exit_code != 0 and self._stop_at is None:
            self._stop_at = now + _CAUSE_MAY_FOLLOW_SECONDS

    def stop(self, *, now: float, within_seconds: float = GRACE_SECONDS) -> None:
        """Ask all to save and end; what is left after that time is killed."""
        if self._kill_at is None:
            self._scene.household.send(signal.SIGTERM, *self.running)
            self._kill_at = now + within_seconds

    def tick(self, *, now: float) -> None:
        """After a failure ask the others to end, and kill what did not in time."""
        if self._stop_at is not None and now >= self._stop_at:
            self.stop(now=now, within_seconds=_OTHERS_MAY_FINISH_SECONDS)
        if self._kill_at is not None and now >= self._kill_at:
            self._scene.household.kill(*self.running)

    def give_up(self, ending: Ending) -> None:
        """End all at once for a reason that none of them knows."""
        if ending not in self.endings:
            self.endings.insert(0, ending)
        self._scene.household.kill(*self.running)
