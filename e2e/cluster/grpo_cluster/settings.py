"""The address ranges, names and folders of a cluster."""

import os
from dataclasses import dataclass
from pathlib import Path

NUM_INSTANCES = 10
CLUSTER_DOMAIN = "cluster.local"
REPOSITORY = Path(__file__).resolve().parents[3]
# A node mounts its own empty file systems over these, because paths below them are compiled into containerd,
# the CNI plug-ins and the kubelet.
PRIVATE_TO_A_NODE = (Path("/run"), Path("/var/lib"), Path("/var/log"))


class ClusterError(Exception):
    """Something a person has to act on; the message names the thing and the fix."""


def cache_dir() -> Path:
    """The folder of all that is kept when no cluster runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "grpo-operator"


@dataclass(frozen=True)
class ClusterSettings:
    """One cluster. Two with different `instance` numbers can run on a machine at the same time.

    `node_network` is the first three numbers of a /24 and `pod_network`, `service_network` are the
    first two of a /16: "10.245.0", "10.244" and "10.96".
    """

    instance: int
    node_network: str
    pod_network: str
    service_network: str
    state_dir: Path
    disabled_controllers: tuple[str, ...] = ()
    """Controllers of kube-controller-manager that do not run."""

    @classmethod
    def for_instance(cls, instance: int = 0, *, state_dir: Path | None = None) -> "ClusterSettings":
        """The settings of cluster number `instance`, 0 being the default one."""
        if not 0 <= instance < NUM_INSTANCES:
            raise ClusterError(
                f"instance must be 0 to {NUM_INSTANCES - 1}, not {instance}: choose another number"
            )
        folder = (state_dir or cache_dir() / "cluster" / str(instance)).resolve()
        for hidden in PRIVATE_TO_A_NODE:
            if folder.is_relative_to(hidden):
                raise ClusterError(
                    f"the state folder {folder} is below {hidden}, which a node replaces with a private "
                    "file system: set XDG_CACHE_HOME to a folder elsewhere"
                )
        return cls(
            instance=instance,
            node_network=f"10.245.{instance}",
            pod_network=f"10.{244 - instance}",
            service_network=f"10.{96 + instance}",
            state_dir=folder,
        )

    @property
    def name(self) -> str:
        """Prefix of the names of this cluster's interfaces and cgroups on the machine."""
        return f"grpo{self.instance}"

    @property
    def marker(self) -> str:
        """Environment entry of every process of this cluster, by which all of them can be found."""
        return f"GRPO_CLUSTER_STATE={self.state_dir}"

    # Addresses

    @property
    def api_address(self) -> str:
        """The bridge of the control plane's namespace: API server and DNS listen here."""
        return f"{self.node_network}.1"

    @property
    def host_address(self) -> str:
        """The machine's address on the bridge."""
        return f"{self.node_network}.2"

    @property
    def api_url(self) -> str:
        return f"https://{self.api_address}:6443"

    @property
    def kubernetes_service_address(self) -> str:
        return f"{self.service_network}.0.1"

    @property
    def dns_service_address(self) -> str:
        return f"{self.service_network}.0.10"

    @property
    def node_range(self) -> str:
        return f"{self.node_network}.0/24"

    @property
    def pod_range(self) -> str:
        return f"{self.pod_network}.0.0/16"

    @property
    def service_range(self) -> str:
        return f"{self.service_network}.0.0/16"

    # Folders

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for people, kubectl, helm and tests."""
        return self.state_dir / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def pids(self) -> Path:
        return self.state_dir / "pids"

    @property
    def keys(self) -> Path:
        """Keys and certificates; one folder per address range, because certificates carry addresses."""
        return self.state_dir / "keys" / f"{self.node_network}-{self.service_network}"

    @property
    def etcd_data(self) -> Path:
        return self.state_dir / "etcd"

    @property
    def volumes(self) -> Path:
        """The folders of the PersistentVolumes, one sub-folder per node."""
        return self.state_dir / "volumes"


@dataclass(frozen=True)
class NodeSettings:
    """One node of a cluster, counted from 0."""

    cluster: ClusterSettings
    index: int

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def address(self) -> str:
        return f"{self.cluster.node_network}.{10 + self.index}"

    @property
    def pod_range(self) -> str:
        return f"{self.cluster.pod_network}.{self.index}.0/24"

    @property
    def cgroup(self) -> str:
        """Parent of this node's pods: kubelets that share /kubepods would remove each other's."""
        return f"{self.cluster.name}-{self.name}"

    @property
    def folder(self) -> Path:
        return self.cluster.state_dir / self.name

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def containerd_root(self) -> Path:
        """Images and snapshots; `down` keeps them."""
        return self.folder / "containerd"

    @property
    def kubelet_root(self) -> Path:
        return self.folder / "kubelet"
