"""The processes of a pod of the local cluster, as the machine sees them and can signal them."""

import signal
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_cluster.settings import ClusterError
from grpo_scenarios.namespace import Object
from grpo_scenarios.strike import send_to_all


@dataclass(frozen=True)
class Container:
    """The only container of a pod, as it runs now. `pids` are those of the machine, process 1 first."""

    pod: str
    address: str
    identifier: str
    pids: tuple[int, ...]

    @classmethod
    def of(cls, pod: Object) -> "Container":
        """Raises ClusterError when it does not run."""
        found = find_container(pod)
        if found is None:
            raise ClusterError(f"pod {pod['metadata']['name']} does not run")
        return found

    def others(self) -> "Container":
        """The same without process 1, the server of an engine or the supervisor of training processes, which
        goes on to answer."""
        return replace(self, pids=self.pids[1:])

    def send(self, number: signal.Signals) -> None:
        """Signal all its processes."""
        send_to_all(self.pids, number)

    def limit_cpu(self, share: float | None) -> None:
        """Give it only this share of one core; None takes the limit away."""
        folder = Path("/proc", str(self.pids[0]), "cgroup").read_text().splitlines()
        ((_, _, path),) = [line.split(":", 2) for line in folder if "cpu" in line.split(":")[1].split(",")]
        settings = Path("/sys/fs/cgroup/cpu", path.lstrip("/"))
        period = int((settings / "cpu.cfs_period_us").read_text())
        (settings / "cpu.cfs_quota_us").write_text(str(-1 if share is None else int(share * period)))


def find_container(pod: Object) -> Container | None:
    """The container of a pod; None while it does not run."""
    (status,) = pod["status"].get("containerStatuses") or [{}]
    identifier = status.get("containerID", "").rpartition("/")[2]
    if "running" not in status.get("state", {}) or not identifier:
        return None
    pids = sorted(_own_number(folder) for folder in Path("/proc").iterdir() if _is_in(folder, identifier))
    if not pids or pids[0][0] != 1:
        return None
    return Container(
        pod["metadata"]["name"], pod["status"]["podIP"], identifier, tuple(outer for _, outer in pids)
    )


def _is_in(folder: Path, identifier: str) -> bool:
    try:
        return folder.name.isdigit() and identifier in (folder / "cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended in the meantime


def _own_number(folder: Path) -> tuple[int, int]:
    """(its number inside of the container, that on the machine)."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return (2**31, int(folder.name))
    (numbers,) = [line.split()[1:] for line in lines if line.startswith("NSpid:")]
    return int(numbers[-1]), int(folder.name)
