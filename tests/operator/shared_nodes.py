"""Several jobs on the same nodes, and a scheduler that gives each pod a node alone, as Kubernetes' own does.

It takes turns between the jobs, so that jobs which start together each get a part. Time goes from one thing
that happens to the next.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.plan.conditions import is_true

from .fake_cluster import NOW, FakeCluster, report, termination

GRACE_SECONDS = 60
"""How long a pod that has a node takes to end."""
TRAINING_SECONDS = 120
WAITS = {"state": TrainerState.WAITING_FOR_ROLLOUT, "step": 0, "policy_version": "1.0"}
NO_NODE = ReasonMessage("Unschedulable", "no node is free")


@dataclass
class SharedNodes:
    """`num_nodes` nodes, each with room for one pod."""

    num_nodes: int
    jobs: tuple[FakeCluster, ...]
    now: datetime = NOW
    ending: dict[str, datetime] = field(default_factory=dict)
    training_since: dict[str, datetime] = field(default_factory=dict)

    def run(self, *, hours: float) -> None:
        """Until every job has finished, or for so long."""
        end = self.now + timedelta(hours=hours)
        while self.now < end and not all(is_true(job.status, ConditionType.FINISHED) for job in self.jobs):
            self.now += timedelta(seconds=max(1.0, self._turn()))

    def _turn(self) -> float:
        """Everybody does what is due; returns the seconds until something else is."""
        waits = [10.0 * 60]
        for _ in range(4):
            self._finish_pods()
            self._schedule()
            for job in self.jobs:
                job.now = self.now
                self._train(job)
                wait = job.step().requeue_after
                waits += [] if wait is None else [wait]
        later = [*self.ending.values(), *(self._end_of_training(at) for at in self.training_since.values())]
        return min([*waits, *((at - self.now).total_seconds() for at in later if at > self.now)])

    def _schedule(self) -> None:
        pods = [pod for job in self.jobs for pod in job.pods.values()]
        free = self.num_nodes - sum(pod.scheduled_at is not None and not pod.is_over for pod in pods)
        waiting = [
            [pod.name for pod in job.pods.values() if pod.is_alive and pod.scheduled_at is None]
            for job in self.jobs
        ]
        for place in range(max(map(len, waiting))):
            for job, names in zip(self.jobs, waiting, strict=True):
                if place < len(names) and free > 0:
                    free -= 1
                    job.now = self.now
                    job.change(names[place], start_problem=None)
                    job.bind(names[place])
                elif place < len(names):
                    job.unbind(names[place], why=NO_NODE)

    def _train(self, job: FakeCluster) -> None:
        trainers = [pod for pod in job.pods.values() if "-trainer-" in pod.name]
        engines = [pod for pod in job.pods.values() if "-rollout-" in pod.name and pod.scheduled_at]
        if any(pod.is_deleting or pod.is_over for pod in trainers):
            self.training_since.pop(job.uid, None)
            return
        for pod in (*trainers, *engines):
            if pod.scheduled_at and pod.phase == "Pending":
                job.change(pod.name, phase="Running", is_ready=True)
        if job.status.phase == "Running" and not engines:
            job.progress = report(job_uid=job.uid, **WAITS)
        elif job.status.phase == "Running":
            began = self.training_since.setdefault(job.uid, self.now)
            job.progress = report(job_uid=job.uid)
            if self.now >= self._end_of_training(began):
                for pod in trainers:
                    job.end(pod.name, termination(0, after=(self.now - NOW).total_seconds()))
                del self.training_since[job.uid]

    def _finish_pods(self) -> None:
        for job in self.jobs:
            for pod in list(job.pods.values()):
                if not pod.is_deleting:
                    continue
                grace = timedelta(seconds=GRACE_SECONDS if pod.scheduled_at else 0)
                if self.now >= self.ending.setdefault(pod.uid + job.uid, self.now + grace):
                    job.vanish(pod.name)

    def _end_of_training(self, began: datetime) -> datetime:
        return began + timedelta(seconds=TRAINING_SECONDS)
