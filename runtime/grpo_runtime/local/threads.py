"""How many CPU threads a training process of a local run has. No torch here."""

import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from grpo_api.quantity import parse_quantity
from grpo_api.resolve import threads_of
from grpo_api.v1alpha1.spec import TrainerSpec
from grpo_runtime.openmp import named_threads

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def threads_on(num_cores: Decimal, trainer: TrainerSpec, *, environment: Mapping[str, str]) -> int:
    """For a trainer whose pods share a machine with so many cores: what OMP_NUM_THREADS says, and else the
    cores of each pod, at most its cpu limit, divided by its processes."""
    if named := named_threads(environment):
        return named
    per_pod = num_cores / trainer.num_nodes
    limit = trainer.resources.limits.get("cpu")
    return threads_of(per_pod if limit is None else min(per_pod, parse_quantity(limit)), trainer)


def usable_cores(*, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> Decimal:
    """The cores that this process may use: those it may run on, or fewer where a cgroup limits their time."""
    limits = [Decimal(len(os.sched_getaffinity(0)))]
    for folder in _own_cgroups(cgroups, own_cgroup):
        file = folder / "cpu.max"
        quota, _, period = file.read_text().strip().partition(" ") if file.exists() else ("max", "", "")
        if quota != "max":
            limits.append(Decimal(quota) / Decimal(period))
    return min(limits)


def _own_cgroups(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """This process's cgroup of version 2 and those above it. A container sees its own as the uppermost."""
    lines = own_cgroup.read_text().splitlines() if own_cgroup.exists() else []
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not paths:
        return []
    own = cgroups / paths[0]
    return [own, *(folder for folder in own.parents if folder.is_relative_to(cgroups))]
