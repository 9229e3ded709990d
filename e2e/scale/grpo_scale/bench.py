"""The measurement from start to end."""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil

from grpo_bench.machine import circumstances
from grpo_cluster.settings import ClusterSettings
from grpo_scale.fake_nodes import NAMESPACE, fake_cluster
from grpo_scale.load import PODS_PER_JOB, create_built_in_jobs, create_jobs, delete_built_in_jobs, time_events
from grpo_scale.observer import Observer
from grpo_scale.operator_process import running_operator
from grpo_scale.report import Delays, Result
from grpo_scale.requests import Requests
from grpo_scale.usage import busy_seconds, cpu_seconds, num_requests, num_writes, versions

_AT_REST_SECONDS = 20.0
_RESYNC_SECONDS = 15.0
_LIMIT_SECONDS = 900.0
_IDLE_CORES = 0.4


async def measure(*, num_jobs: int) -> Result:
    """Everything that one run measures. Raises ClusterError when a part does not do what it should."""
    with fake_cluster() as settings:
        async with Requests.to(settings) as requests:
            observer = Observer(requests)
            following = asyncio.create_task(observer.run())
            measuring = asyncio.create_task(_Bench(settings, requests, observer, num_jobs).run())
            try:
                await asyncio.wait((following, measuring), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                return await measuring
            except ExceptionGroup as group:  # of tasks that ran together, the first that failed says why
                raise group.exceptions[0] from group
            finally:
                following.cancel()
                measuring.cancel()
                await asyncio.gather(following, measuring, return_exceptions=True)


@dataclass(frozen=True)
class _Bench:
    settings: ClusterSettings
    requests: Requests
    observer: Observer
    num_jobs: int

    async def run(self) -> Result:
        """The phases one after the other."""
        _say(f"{self.num_jobs} Jobs of the built-in controller")
        used = self._cpu_seconds()
        built_in = await create_built_in_jobs(self.requests, self.observer, num_jobs=self.num_jobs)
        built_in_used = self._cpu_seconds()
        await delete_built_in_jobs(self.requests, self.observer)
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/operator/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await self.requests.send("POST", path, body))["status"]["token"]
        with running_operator(self.settings, token=token) as operator:
            measured = await self._measure_jobs(operator)
        _say("the operator starts again")
        before = await versions(self.requests)
        with running_operator(self.settings, f"--resync-seconds={_RESYNC_SECONDS}", token=token) as operator:
            await _idle(operator)
            restarted = await versions(self.requests)
            _say("it lists everything again")
            await asyncio.sleep(_RESYNC_SECONDS)
            await _idle(operator)
            resynced = await versions(self.requests)
        return Result(
            num_jobs=self.num_jobs,
            built_in_pods_per_second=self.num_jobs * PODS_PER_JOB / built_in,
            built_in_cpu_ms_per_pod=1000
            * sum(built_in_used[name] - used[name] for name in used)
            / (self.num_jobs * PODS_PER_JOB),
            writes_after_restart=num_writes(before, restarted),
            writes_in_resync=num_writes(restarted, resynced),
            circumstances=circumstances(),
            **measured,
        )

    async def _measure_jobs(self, operator: psutil.Process) -> dict[str, Any]:
        await _idle(operator)
        empty_bytes, asked = operator.memory_info().rss, await num_requests(self.requests)
        used = self._cpu_seconds(operator)
        _say(f"{self.num_jobs} GRPOJobs")
        first_seconds, names = await self._create_jobs("first")
        await self.observer.until(
            lambda: all(self.observer.jobs[name].phase == "Running" for name in names),
            what="all jobs to be Running",
            timeout_seconds=_LIMIT_SECONDS,
        )
        running_used = self._cpu_seconds(operator)
        await _idle(operator)
        full_bytes = operator.memory_info().rss
        num_asked = await num_requests(self.requests) - asked
        _say(f"at rest: a pod changes five times a second, for {_AT_REST_SECONDS:.0f} s")
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(_AT_REST_SECONDS, stop.set)
        at_rest = await time_events(self.requests, self.observer, names=names, stop=stop)
        _say(f"the storm: {self.num_jobs} more GRPOJobs")
        storm_seconds, in_storm, cores, cores_of_others = await self._storm(operator, names)
        await _idle(operator)
        twice_bytes = operator.memory_info().rss
        return {
            "first_jobs_per_second": self.num_jobs / first_seconds,
            "storm_jobs_per_second": self.num_jobs / storm_seconds,
            "storm_pods_per_second": self.num_jobs * PODS_PER_JOB / storm_seconds,
            "at_rest": Delays.of(at_rest),
            "in_storm": Delays.of(in_storm),
            "cpu_ms_per_job": {
                name: 1000 * (running_used[name] - used[name]) / self.num_jobs for name in used
            },
            "requests_per_job": num_asked / self.num_jobs,
            "resident_kib_per_job": (twice_bytes - empty_bytes) / 1024 / (2 * self.num_jobs),
            "resident_kib_per_further_job": (twice_bytes - full_bytes) / 1024 / self.num_jobs,
            "cores": cores,
            "cores_of_others": cores_of_others,
        }

    async def _storm(
        self, operator: psutil.Process, running: list[str]
    ) -> tuple[float, list[float], dict[str, float], float]:
        """(seconds until the new jobs have their pods, delays of events of the running ones, cores used by
        each process, cores used by what is not part of the bench)."""
        used, busy = cpu_seconds(self.settings, operator), busy_seconds()
        start, stop = time.monotonic(), asyncio.Event()
        timing = asyncio.create_task(
            time_events(self.requests, self.observer, names=running, stop=stop), name="events"
        )
        try:
            seconds, _ = await self._create_jobs("storm")
        finally:
            stop.set()
        after, took = cpu_seconds(self.settings, operator), time.monotonic() - start
        cores = {name: (after[name] - used[name]) / took for name in used}
        others = max(0.0, (busy_seconds() - busy) / took - sum(cores.values()))
        return seconds, await timing, cores, others

    def _cpu_seconds(self, operator: psutil.Process | None = None) -> dict[str, float]:
        """CPU time of each process so far, without the bench's own."""
        used = cpu_seconds(self.settings, operator)
        return {name: seconds for name, seconds in used.items() if name != "bench"}

    async def _create_jobs(self, prefix: str) -> tuple[float, list[str]]:
        names = [f"{prefix}-{index}" for index in range(self.num_jobs)]
        return await create_jobs(self.requests, self.observer, names=names), names


async def _idle(process: psutil.Process) -> None:
    """Wait until a process has little to do: polls of trainers go on all the time."""
    async with asyncio.timeout(_LIMIT_SECONDS):
        num_quiet = 0
        while num_quiet < 3:
            before = sum(process.cpu_times()[:2])
            await asyncio.sleep(1.0)
            is_quiet = sum(process.cpu_times()[:2]) - before < _IDLE_CORES
            num_quiet = num_quiet + 1 if is_quiet else 0


def _say(what: str) -> None:
    print(f"==> {what}", file=sys.stderr, flush=True)
