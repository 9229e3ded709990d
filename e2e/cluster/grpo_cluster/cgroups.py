"""A cgroup per node for its pods, in every hierarchy of cgroup v1 or in the one of v2."""

from contextlib import suppress
from pathlib import Path

from grpo_cluster.settings import ClusterSettings, NodeSettings
from grpo_cluster.waiting import wait_until

CGROUP_ROOT = Path("/sys/fs/cgroup")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")


def hierarchies() -> list[Path]:
    """The roots of all hierarchies: one per controller (v1), or a single one (v2)."""
    if (CGROUP_ROOT / "cgroup.controllers").is_file():
        return [CGROUP_ROOT]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    v1 = {Path(fields[1]).resolve() for fields in mounts if fields[2] == "cgroup"}
    return sorted(v1)


def ensure_node_cgroup(node: NodeSettings) -> None:
    """Make the node's cgroup, because the kubelet does not make its `cgroupRoot` itself."""
    for root in hierarchies():
        folder = root / node.cgroup
        folder.mkdir(exist_ok=True)
        if (root / "cgroup.controllers").is_file():
            _pass_controllers_down(root)
            _pass_controllers_down(folder)
        elif (root / _CPUSET_FILES[0]).is_file():
            # A v1 cpuset starts without CPUs, and no process may enter one without.
            for file in _CPUSET_FILES:
                (folder / file).write_text((root / file).read_text())


def remove_cgroups(settings: ClusterSettings) -> None:
    """Remove the cgroups of all nodes; their processes must have ended."""

    def none_left() -> bool:
        tops = [top for root in hierarchies() for top in root.glob(f"{settings.name}-node*")]
        for top in tops:
            _remove_tree(top)
        return not tops

    # The kernel lets a cgroup be removed only a moment after its last process ended.
    wait_until(none_left, timeout_seconds=20, what=f"the cgroups of {settings.name} to be removed")


def _remove_tree(folder: Path) -> None:
    with suppress(OSError):
        for child in folder.iterdir():
            if child.is_dir():
                _remove_tree(child)
        folder.rmdir()


def _pass_controllers_down(folder: Path) -> None:
    available = (folder / "cgroup.controllers").read_text().split()
    for controller in _V2_CONTROLLERS:
        if controller in available:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
