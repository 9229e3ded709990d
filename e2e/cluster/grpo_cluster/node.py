"""One node: containerd, kubelet and kube-proxy in namespaces of their own.

Killing the node's first process ends all of it: pods, mounts, interfaces, rules. That is how `down` ends a
node, and how a test makes one fail.
"""

import json
import subprocess
from pathlib import Path

from grpo_cluster import processes
from grpo_cluster.certificates import KUBE_PROXY, KeyFolder, ensure_certificate, node_identity
from grpo_cluster.cgroups import ensure_node_cgroup
from grpo_cluster.kubeconfig import write_kubeconfig
from grpo_cluster.network import connect_node
from grpo_cluster.prerequisites import CNI_PLUGINS
from grpo_cluster.settings import CLUSTER_DOMAIN, NodeSettings
from grpo_cluster.versions import program_path
from grpo_cluster.waiting import wait_until

PAUSE_IMAGE = "localhost/pause:dev"
_INIT = Path(__file__).with_name("node_init.sh")


def start_node(node: NodeSettings, holder: processes.Process) -> processes.Process:
    """Start a node and join it to the network. It keeps the images it had before."""
    ensure_node_cgroup(node)
    _write_configuration(node)
    process = processes.start(
        node.cluster,
        node.name,
        [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            _INIT,
        ],
        environment={
            "NODE_NAME": node.name,
            "NODE_FOLDER": str(node.folder),
            "NODE_LOGS": str(node.cluster.logs),
            "KUBELET_ROOT": str(node.kubelet_root),
            "KUBELET": str(program_path("kubelet")),
            "KUBE_PROXY": str(program_path("kube-proxy")),
            "NODE_ADDRESS": node.address,
        },
    )
    wait_until(
        lambda: (node.folder / "ready-for-network").exists() or not process.is_alive,
        timeout_seconds=10,
        what=f"the namespaces of {node.name}",
        hint=lambda: f"log: {processes.log_path(node.cluster, node.name)}",
    )
    connect_node(node, holder, process)
    (node.folder / "network-is-there").touch()
    return process


def ctr(node: NodeSettings, *arguments: str) -> list[str]:
    """A `ctr` command line for this node's containerd, in the namespace that the kubelet uses."""
    return ["ctr", "--address", str(node.containerd_socket), "--namespace", "k8s.io", *arguments]


def is_containerd_up(node: NodeSettings) -> bool:
    return subprocess.run(ctr(node, "version"), capture_output=True, check=False).returncode == 0


def _write_configuration(node: NodeSettings) -> None:
    keys = KeyFolder(node.cluster.keys)
    identity = node_identity(node)
    ensure_certificate(keys, identity)
    node.kubelet_root.mkdir(parents=True, exist_ok=True)
    for signal in ("ready-for-network", "network-is-there"):
        (node.folder / signal).unlink(missing_ok=True)
    (node.folder / "resolv.conf").write_text("")
    write_kubeconfig(node.cluster, keys, identity, path=node.folder / "kubelet.kubeconfig")
    write_kubeconfig(node.cluster, keys, KUBE_PROXY, path=node.folder / "kube-proxy.kubeconfig")
    (node.folder / "kubelet.json").write_text(json.dumps(_kubelet(node, keys), indent=2))
    (node.folder / "kube-proxy.json").write_text(json.dumps(_kube_proxy(node), indent=2))
    (node.folder / "containerd.toml").write_text(_containerd(node))
    network = node.folder / "cni" / "10-bridge.conflist"
    network.parent.mkdir(exist_ok=True)
    network.write_text(json.dumps(_pod_network(node), indent=2))


def _kubelet(node: NodeSettings, keys: KeyFolder) -> dict[str, object]:
    identity = node_identity(node)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys.certificate(identity)),
        "tlsPrivateKeyFile": str(keys.key(identity)),
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        "oomScoreAdj": 0,  # lowering it needs a capability that sandboxes take away
        "clusterDNS": [node.cluster.dns_service_address],
        "clusterDomain": CLUSTER_DOMAIN,
        # An empty file, so that pods do not get the machine's resolver and search domains.
        "resolvConf": str(node.folder / "resolv.conf"),
        "podLogsDir": str(node.folder / "pod-logs"),
        "volumePluginDir": str(node.cluster.state_dir / "volume-plugins"),
        # Low limits: a developer's disk is often nearly full, and no image can be pulled again.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }


def _kube_proxy(node: NodeSettings) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(node.folder / "kube-proxy.kubeconfig")},
        "hostnameOverride": node.name,
        "mode": "iptables",
        "clusterCIDR": node.cluster.pod_range,
        "oomScoreAdj": 0,
        # Zero leaves these settings of the machine as they are.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpCloseWaitTimeout": "0s",
            "tcpEstablishedTimeout": "0s",
        },
    }


def _containerd(node: NodeSettings) -> str:
    return f"""\
version = 2
root = "{node.containerd_root}"
state = "/run/containerd"

[grpc]
  address = "{node.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder / "containerd-opt"}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".registry]
# where a machine's own registries, mirrors and their certificates are usually described
config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "{node.folder / "cni"}"
"""


def _pod_network(node: NodeSettings) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",  # in /run, so it starts empty with the node
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
