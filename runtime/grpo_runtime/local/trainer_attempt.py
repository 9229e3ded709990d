"""One attempt of a local job's trainer: one supervisor for each node; they start and end together."""

import signal

from grpo_api.contract.graces import SUPERVISOR_MARGIN_SECONDS
from grpo_api.contract.progress import Progress
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.environments import trainer_environment
from grpo_runtime.local.gpus import seeing
from grpo_runtime.local.ports import LOOPBACK, free_ports
from grpo_runtime.local.process_table import ProcessExit, ProcessOutcome, outcome_of
from grpo_runtime.report.progress import read_progress

GRACE_SECONDS = 110.0
"""How long a trainer may take to save a checkpoint after a stop was asked for. Longer than in a pod: a step
on CPU, at whose end it is saved, takes long, no node waits to be drained, and a second Ctrl-C ends the
wait."""
_OTHERS_MAY_FINISH_SECONDS = 20.0
_CAUSE_MAY_FOLLOW_SECONDS = 1.0
"""How long the cause of a failure may follow it: a trainer that lost a peer may be seen to end before it."""


class TrainerAttempt:
    """The trainers of one attempt; `now` is on the monotonic clock."""

    def __init__(
        self,
        context: LocalContext,
        *,
        number: int,
        rollout_ports: list[int],
        has_lowered_budget: bool,
    ) -> None:
        """Start all trainers of attempt `number`, whose engines listen on `rollout_ports`."""
        self.number = number
        self.outcomes: list[ProcessOutcome] = []
        self._context = context
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._names = [f"trainer-{index}" for index in range(context.run_config.topology.num_nodes)]
        (rendezvous_port,) = free_ports(1)
        for index, name in enumerate(self._names):
            environment = trainer_environment(
                context.run_config,
                context.workspace,
                attempt=number,
                index=index,
                cache=context.fresh_cache(name),
                rollout_ports=rollout_ports,
                has_lowered_budget=has_lowered_budget,
            )
            context.processes.start(
                name,
                [
                    *context.programs.trainer,
                    *("--host", LOOPBACK, "--port", "0", "--rendezvous-port", str(rendezvous_port)),
                    *("--grace-seconds", str(GRACE_SECONDS - SUPERVISOR_MARGIN_SECONDS)),
                    *("--termination-log", str(context.fresh_termination_log(name))),
                ],
                {**context.environment, **environment, **seeing(context.gpus.trainers[index])},
                log=context.workspace.log(name),
            )

    @property
    def is_over(self) -> bool:
        """Whether all its trainers have ended."""
        return not self.running

    @property
    def running(self) -> set[str]:
        """The names of its trainers that still run."""
        return self._context.processes.names & set(self._names)

    @property
    def wakes_at(self) -> float | None:
        """When the trainers that still run are to be asked to end, or killed."""
        if not self.running:
            return None
        return self._stop_at if self._kill_at is None else self._kill_at

    @property
    def progress(self) -> Progress | None:
        """What trainer 0 reports; None before it does."""
        return read_progress(self._context.workspace.cache(self._names[0]) / "run")

    def ended(self, process_exit: ProcessExit, *, now: float) -> None:
        """Record how a trainer ended; a moment after a failure the others are asked to end too."""
        termination_log = self._context.workspace.termination_log(process_exit.name)
        self.outcomes.append(outcome_of(process_exit, termination_log=termination_log))
        if process_exit.exit_code != 0 and self._stop_at is None:
            self._stop_at = now + _CAUSE_MAY_FOLLOW_SECONDS

    def stop(self, *, now: float, within_seconds: float = GRACE_SECONDS) -> None:
        """Ask all to save and end; those that still run after `within_seconds` are killed."""
        if self._kill_at is None:
            self._context.processes.send(signal.SIGTERM, *self.running)
            self._kill_at = now + within_seconds

    def tick(self, *, now: float) -> None:
        """Ask the others to end after a failure, and kill those that have not ended in time."""
        if self._stop_at is not None and now >= self._stop_at:
            self.stop(now=now, within_seconds=_OTHERS_MAY_FINISH_SECONDS)
        if self._kill_at is not None and now >= self._kill_at:
            self._context.processes.kill(*self.running)

    def fail(self, outcome: ProcessOutcome) -> None:
        """Kill all trainers, for a cause that lies outside them."""
        if outcome not in self.outcomes:
            self.outcomes.insert(0, outcome)
        self._context.processes.kill(*self.running)
