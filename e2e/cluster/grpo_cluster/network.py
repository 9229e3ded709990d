"""How the parts reach each other: a network namespace with a bridge for the control plane, and one per node.

            control plane's namespace                     a node's namespace
machine     br0 NET.1 (API server, DNS)                   eth0 NET.10+i
gN-host NET.2 ----- port of br0        port of br0 ------ cni0 PODS.i.1 --- pods PODS.i.x
"""

import json
import subprocess
from pathlib import Path

from grpo_cluster import processes
from grpo_cluster.settings import ClusterError, ClusterSettings, NodeSettings
from grpo_cluster.waiting import wait_until

HOLDER = "network"  # the process that keeps the control plane's namespace alive
BRIDGE = "br0"
BRIDGE_HARDWARE_ADDRESS = "02:00:00:00:00:01"
UNREACHABLE_METRIC = "9999"


def host_interface(settings: ClusterSettings) -> str:
    return f"{settings.name}-host"


def inside(process: processes.Process) -> list[str]:
    """Prefix for a command that runs it in the network namespace of the process."""
    return ["nsenter", f"--net=/proc/{process.pid}/ns/net"]


def ensure_network(settings: ClusterSettings) -> processes.Process:
    """Make the control plane's network namespace with its bridge, and the machine's interface on that bridge.

    Returns the process that keeps the namespace alive.
    """
    holder = processes.running(settings, HOLDER)
    if holder:
        return holder
    _refuse_taken_ranges(settings)
    holder = processes.start(settings, HOLDER, ["unshare", "--net", "sleep", "infinity"])
    wait_until(lambda: _has_own_network(holder), timeout_seconds=5, what="a network namespace")
    _block_ranges(settings)
    host = host_interface(settings)
    _run("ip", "link", "add", host, "type", "veth", "peer", "name", "host", "netns", str(holder.pid))
    _run("ip", "link", "set", host, "alias", str(settings.state_dir))
    for arguments in (
        ["ip", "link", "set", "lo", "up"],
        # With a fixed hardware address. Otherwise the bridge takes the lowest of its ports, and when a node
        # joins or leaves, all connections to the API server hang until ARP has learned the new one.
        ["ip", "link", "add", BRIDGE, "address", BRIDGE_HARDWARE_ADDRESS, "type", "bridge"],
        ["ip", "address", "add", f"{settings.api_address}/24", "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
        ["ip", "link", "set", "host", "master", BRIDGE, "up"],
    ):
        _run(*inside(holder), *arguments)
    _run("ip", "address", "add", f"{settings.host_address}/24", "dev", host)
    _run("ip", "link", "set", host, "up")
    return holder


def connect_node(node: NodeSettings, holder: processes.Process, process: processes.Process) -> None:
    """Give a node its eth0 on the bridge; add routes to its pods on the machine and in the control plane."""
    port = node.name
    # When a node was killed, its old interface disappears, but not at once.
    subprocess.run([*inside(holder), "ip", "link", "del", port], capture_output=True, check=False)
    _run(
        *inside(holder),
        "ip",
        "link",
        "add",
        port,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        str(process.pid),
    )
    _run(*inside(holder), "ip", "link", "set", port, "master", BRIDGE, "up")
    _run(*inside(process), "ip", "address", "add", f"{node.address}/24", "dev", "eth0")
    _run(*inside(process), "ip", "link", "set", "eth0", "up")
    _run(*inside(process), "ip", "link", "set", "lo", "up")
    # a pod on the node's own network reaches Services only if there is a route before kube-proxy changes it
    service_range = node.cluster.service_range
    _run(*inside(process), "ip", "route", "replace", service_range, "via", node.cluster.host_address)
    for prefix in ([], inside(holder)):
        _run(*prefix, "ip", "route", "replace", node.pod_range, "via", node.address)
        if node.index == 0:
            _run(*prefix, "ip", "route", "replace", node.cluster.service_range, "via", node.address)


def connect_nodes(nodes: dict[NodeSettings, processes.Process]) -> None:
    """Add to each node the routes to the pods of the others."""
    for node, process in nodes.items():
        for other in nodes:
            if other != node:
                _run(*inside(process), "ip", "route", "replace", other.pod_range, "via", other.address)


def refuse_foreign_network(settings: ClusterSettings) -> None:
    """Raise ClusterError when a cluster with another state folder uses this instance's number."""
    owner = network_owner(settings)
    if owner not in (None, settings.state_dir):
        raise ClusterError(
            f"instance {settings.instance} is the cluster of {owner}: choose another with --instance, "
            f"or take that one down; if that folder is gone, `ip link del {host_interface(settings)}`"
        )


def network_owner(settings: ClusterSettings) -> Path | None:
    """State folder of the cluster that owns this instance's interface; None when there is none."""
    # One call for all interfaces: between two calls one may disappear, because its cluster is ending.
    answer = subprocess.run(["ip", "-json", "link", "show"], capture_output=True, text=True, check=True)
    found = (link for link in json.loads(answer.stdout) if link["ifname"] == host_interface(settings))
    # After a crash between making the interface and naming its owner, it has no owner.
    name = next(found, {}).get("ifalias")
    return Path(name) if name else None


def remove_network(settings: ClusterSettings) -> None:
    """Remove the machine's interface and all routes; the rest went with the processes."""
    if _has_interface(host_interface(settings)):
        subprocess.run(["ip", "link", "del", host_interface(settings)], capture_output=True, check=False)
    wait_until(
        lambda: not _has_interface(host_interface(settings)),
        timeout_seconds=10,
        what=f"interface {host_interface(settings)} to disappear",
    )
    for route in (settings.node_range, settings.pod_range, settings.service_range):
        delete = ["ip", "route", "del", "unreachable", route, "metric", UNREACHABLE_METRIC]
        subprocess.run(delete, capture_output=True, check=False)


def _block_ranges(settings: ClusterSettings) -> None:
    """Make connections fail while an interface is missing; else they would leave by the default route."""
    for route in (settings.node_range, settings.pod_range, settings.service_range):
        _run("ip", "route", "replace", "unreachable", route, "metric", UNREACHABLE_METRIC)


def _refuse_taken_ranges(settings: ClusterSettings) -> None:
    """Raise ClusterError when another network of this machine already uses our addresses."""
    for wanted in (settings.node_range, settings.pod_range, settings.service_range):
        answer = subprocess.run(
            ["ip", "-json", "route", "show", "root", wanted], capture_output=True, text=True, check=True
        )
        for route in json.loads(answer.stdout or "[]"):
            if route.get("metric") != int(UNREACHABLE_METRIC):
                raise ClusterError(
                    f"this machine already has a route to {route['dst']}, inside the cluster's {wanted}: "
                    "remove that network or choose other addresses with --instance"
                )


def _has_own_network(process: processes.Process) -> bool:
    if not process.is_alive:
        raise ClusterError("unshare --net ended at once: the cluster needs root and network namespaces")
    return namespace_of(process.pid) != namespace_of("self")


def namespace_of(pid: int | str) -> str:
    """The id of a process's network namespace, such as net:[4026531840]."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _has_interface(name: str) -> bool:
    return subprocess.run(["ip", "link", "show", name], capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {finished.stderr.strip()}")
