"""Shows what was measured as a table for people, and as one line of JSON. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from grpo_bench.machine import Circumstances


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Seconds from a pod's change to its job's status."""

    num_events: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Delays":
        """The percentiles of some delays; there must be two or more."""
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return cls(num_events=len(seconds), p50=cuts[49], p95=cuts[94], p99=cuts[98])


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that one run measures. Rates are per second of wall clock."""

    num_jobs: int
    built_in_pods_per_second: float
    first_jobs_per_second: float
    """With no other jobs there."""
    storm_jobs_per_second: float
    storm_pods_per_second: float
    at_rest: Delays
    in_storm: Delays
    built_in_cpu_ms_per_pod: float
    """CPU time of everything but the bench itself, for each pod of the built-in controller."""
    cpu_ms_per_job: Mapping[str, float]
    """CPU time of each process for each job, until it runs."""
    requests_per_job: float
    resident_kib_per_job: float
    """How much more memory the operator holds with all jobs than with none, for each job."""
    resident_kib_per_further_job: float
    """How much more it holds after the storm than before it, for each of its jobs."""
    writes_after_restart: int
    writes_in_resync: int
    cores: Mapping[str, float]
    """Cores that each process used in the storm."""
    cores_of_others: float
    """Cores that everything else on the machine used meanwhile."""
    circumstances: Circumstances

    @property
    def bound_by(self) -> str:
        """What the storm could not have been faster without."""
        used = sum(self.cores.values()) + self.cores_of_others
        num_cores = self.circumstances.num_cores
        if self.cores["operator"] > 0.9:
            return f"the operator, whose one core was busy ({self.cores['operator']:.2f})"
        if self.cores_of_others > 0.3 * num_cores:
            return f"other work on the machine, {self.cores_of_others:.2f} cores: measure again without it"
        if used > 0.9 * num_cores:
            return f"the machine: {used:.2f} of its {num_cores} cores were busy"
        return f"waiting: only {used:.2f} of {num_cores} cores were busy"


def table(result: Result) -> str:
    """A table with one line for each measure."""
    where = result.circumstances
    rows = [
        ("pods/s of the built-in Job controller", f"{result.built_in_pods_per_second:.1f}"),
        ("jobs/s of the operator, first jobs", f"{result.first_jobs_per_second:.1f}"),
        ("jobs/s in the storm", f"{result.storm_jobs_per_second:.1f}"),
        ("pods/s in the storm", f"{result.storm_pods_per_second:.1f}"),
        ("event to status at rest, s", _delays(result.at_rest)),
        ("event to status in the storm, s", _delays(result.in_storm)),
        ("CPU time a pod of the Job controller, ms", f"{result.built_in_cpu_ms_per_pod:.1f}"),
        ("CPU time a job until it runs, ms", _cpu(result.cpu_ms_per_job)),
        ("requests to the API server a job", f"{result.requests_per_job:.1f}"),
        ("memory of the operator a job, KiB", f"{result.resident_kib_per_job:.0f}"),
        ("the same, of the jobs of the storm", f"{result.resident_kib_per_further_job:.0f}"),
        ("writes after a restart", str(result.writes_after_restart)),
        ("writes in a resync", str(result.writes_in_resync)),
        ("cores in the storm", ", ".join(f"{name} {used:.2f}" for name, used in _most(result.cores))),
        ("bound by", result.bound_by),
    ]
    width = max(len(name) for name, _ in rows)
    head = f"scale: {result.num_jobs} jobs at rest and {result.num_jobs} in the storm, 3 pods each"
    circumstances = f"{where.num_cores} cores of {where.cpu}; commit {where.commit}; {where.date}"
    return "\n".join([head, circumstances, *(f"{name.ljust(width)}   {value}" for name, value in rows)])


def json_line(result: Result) -> str:
    """The whole result."""
    return json.dumps({"bench": "scale", **asdict(result), "bound_by": result.bound_by})


def _cpu(used: Mapping[str, float]) -> str:
    total = sum(used.values())
    return f"{total:.0f}: " + ", ".join(f"{name} {ms:.0f}" for name, ms in _most(used))


def _delays(delays: Delays) -> str:
    return f"p50 {delays.p50:.2f}, p95 {delays.p95:.2f}, p99 {delays.p99:.2f} ({delays.num_events} events)"


def _most(cores: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, used) for name, used in cores.items() if used >= 0.01), key=lambda item: -item[1])
