"""What the bench sees of the cluster through its own watches: pods of each job, and each job's status."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from grpo_api.contract.labels import JOB, ROLE
from grpo_cluster.settings import ClusterError
from grpo_scale.fake_nodes import NAMESPACE
from grpo_scale.requests import Object, Requests

JOBS_PATH = f"/apis/grpo.dev/v1alpha1/namespaces/{NAMESPACE}/grpojobs"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class JobSeen:
    """What is known about one job."""

    phase: str = ""
    num_engines_ready: int = 0
    engines: set[str] = field(default_factory=set)
    """Names of its rollout pods."""


class Observer:
    """Follows the namespace until it is cancelled."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._changed = asyncio.Condition()
        self.jobs: dict[str, JobSeen] = {}
        self.num_pods_of: dict[str, int] = {}
        """By the name of the GRPOJob or of the Job."""

    async def run(self) -> None:
        """Follow jobs and pods. Raises ClusterError when a watch ends."""
        await asyncio.gather(self._follow_jobs(), self._follow_pods())

    async def until(self, is_true: Callable[[], bool], *, what: str, timeout_seconds: float) -> float:
        """The time (time.monotonic) at which something became true. Raises ClusterError naming `what`."""
        try:
            async with asyncio.timeout(timeout_seconds), self._changed:
                await self._changed.wait_for(is_true)
        except TimeoutError as error:
            raise ClusterError(f"waited {timeout_seconds:.0f} s for {what}") from error
        return time.monotonic()

    async def _follow_jobs(self) -> None:
        async for _, job in self._requests.watch(JOBS_PATH):
            status = job.get("status", {})
            seen = self.jobs.setdefault(job["metadata"]["name"], JobSeen())
            seen.phase = status.get("phase", "")
            seen.num_engines_ready = status.get("rollout", {}).get("ready", 0)
            await self._notify()

    async def _follow_pods(self) -> None:
        async for event, pod in self._requests.watch(PODS_PATH):
            if event in {"ADDED", "DELETED"}:
                self._count(pod, 1 if event == "ADDED" else -1)
                await self._notify()

    def _count(self, pod: Object, change: int) -> None:
        labels = pod["metadata"]["labels"]
        job = labels.get(JOB) or labels["batch.kubernetes.io/job-name"]
        self.num_pods_of[job] = self.num_pods_of.get(job, 0) + change
        if labels.get(ROLE) == "rollout" and change > 0:
            self.jobs.setdefault(job, JobSeen()).engines.add(pod["metadata"]["name"])

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
