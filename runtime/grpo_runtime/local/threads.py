"""How many CPU threads a training process of a local run has. No torch here."""

import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from grpo_api.quantity import parse_quantity
from grpo_api.resolve import threads_of
from grpo_api.v1alpha1.spec import TrainerSpec

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def threads_on(num_cores: Decimal, trainer: TrainerSpec, *, environment: Mapping[str, str]) -> int:
    """Threads of a trainer whose pods share a machine with so many cores: what OMP_NUM_THREADS says, and else
    the cores of each pod, at most its cpu limit, divided by its processes."""
    if named := _named_threads(environment):
        return named
    per_pod = num_cores / trainer.num_nodes
    limit = trainer.resources.limits.get("cpu")
    return threads_of(per_pod if limit is None else min(per_pod, parse_quantity(limit)), trainer)


def usable_cores(*, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> Decimal:
    """The cores that this process may use: those it may run on, or fewer where a cgroup limits their time."""
    limits = [_limit_of(folder) for folder in _own_cgroups(cgroups, own_cgroup)]
    return min([Decimal(len(os.sched_getaffinity(0))), *(limit for limit in limits if limit is not None)])


def _named_threads(environment: Mapping[str, str]) -> int | None:
    """The number of threads that OMP_NUM_THREADS names; None where it names none, or not with a number."""
    # OpenMP allows a list, of which the first number counts
    named = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) > 0 else None


def _limit_of(folder: Path) -> Decimal | None:
    """The cores of a cgroup by its quota, which is one file in version 2 and two in version 1."""
    newer, quota_file = folder / "cpu.max", folder / "cpu.cfs_quota_us"
    if newer.exists():
        quota, _, period = newer.read_text().strip().partition(" ")
    elif quota_file.exists():
        quota, period = quota_file.read_text().strip(), (folder / "cpu.cfs_period_us").read_text().strip()
    else:
        return None
    return None if quota in ("max", "-1") else Decimal(quota) / Decimal(period)


def _own_cgroups(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """This process's cgroups of version 2 and of version 1's cpu, and those above them. A container sees its
    own as the uppermost, and may read a path that it does not have."""
    lines = own_cgroup.read_text().splitlines() if own_cgroup.exists() else []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:
            mounts = [cgroups]
        elif "cpu" in controllers.split(","):
            # named after all that it controls, in whatever order, or after one of them
            mounts = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        for own in (mount / path.lstrip("/") for mount in mounts):
            found += [own, *(folder for folder in own.parents if folder.is_relative_to(cgroups))]
    return found
