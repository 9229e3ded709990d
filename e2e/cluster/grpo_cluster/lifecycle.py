"""Starting and ending a cluster. Both are safe to repeat, whatever state the cluster is in."""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from grpo_cluster import control_plane, processes
from grpo_cluster.api import Api, ApiUnreachable, resolve
from grpo_cluster.binaries import build_all
from grpo_cluster.certificates import ADMIN, CLIENTS, ensure_keys
from grpo_cluster.cgroups import remove_cgroups
from grpo_cluster.console import last_lines, say, step
from grpo_cluster.images import MAX_NODES, ensure_pause_image
from grpo_cluster.kubeconfig import write_kubeconfig
from grpo_cluster.network import (
    HOLDER,
    connect_nodes,
    ensure_network,
    inside,
    network_owner,
    refuse_foreign_network,
    remove_network,
)
from grpo_cluster.node import is_containerd_up, start_node
from grpo_cluster.persistent_volumes import apply_storage_class, apply_volumes
from grpo_cluster.prerequisites import ensure_prerequisites
from grpo_cluster.settings import CLUSTER_DOMAIN, ClusterError, ClusterSettings, NodeSettings
from grpo_cluster.waiting import wait_until

RECYCLER = "volume-recycler"
START_TIMEOUT_SECONDS = 120.0  # 5 on an idle machine
_COMMAND_LINE = Path(__file__).resolve().parents[1] / "cli.py"


def up(settings: ClusterSettings, *, num_nodes: int) -> None:
    """Bring the cluster to at least `num_nodes` ready nodes; what runs already is not touched.

    With 0 nodes only etcd, the API server and the controllers run. Raises ClusterError, with the log's path,
    when a part does not start in time.
    """
    if not 0 <= num_nodes <= MAX_NODES:
        raise ClusterError(f"--nodes must be 0 to {MAX_NODES}, not {num_nodes}")
    ensure_prerequisites()
    build_all()
    with _lock(settings):
        refuse_foreign_network(settings)
        if not processes.running(settings, HOLDER):
            # After a crash or a reboot nothing of what ran before can be used.
            _remove_everything(settings)
            shutil.rmtree(settings.logs, ignore_errors=True)
        with step(f"control plane of {settings.name}"):
            holder = ensure_network(settings)
            keys = ensure_keys(settings)
            for identity in CLIENTS:
                write_kubeconfig(settings, keys, identity)
            write_kubeconfig(settings, keys, ADMIN, path=settings.kubeconfig)
            components = control_plane.COMPLETE if num_nodes else control_plane.API_ONLY
            api = _start_control_plane(settings, holder, components)
        if num_nodes:
            with step(f"{num_nodes} node{'s' if num_nodes > 1 else ''}"):
                _start_nodes(settings, holder, api, num_nodes)


def down(settings: ClusterSettings) -> None:
    """End the cluster. Only images, keys and logs stay on the machine."""
    if not settings.state_dir.is_dir():
        return
    with _lock(settings), step(f"taking {settings.name} down"):
        _remove_everything(settings)


def _remove_everything(settings: ClusterSettings) -> None:
    processes.kill_all(settings)
    if network_owner(settings) in (None, settings.state_dir):
        remove_network(settings)
        remove_cgroups(settings)
    settings.kubeconfig.unlink(missing_ok=True)
    leftovers = [settings.etcd_data, settings.volumes]
    for index in range(MAX_NODES):
        node = NodeSettings(settings, index)
        leftovers += [node.kubelet_root, node.folder / "pod-logs"]
        node.containerd_socket.unlink(missing_ok=True)
    for folder in leftovers:
        if folder.exists():
            shutil.rmtree(folder)


def _start_control_plane(
    settings: ClusterSettings, holder: processes.Process, components: tuple[str, ...]
) -> Api:
    def start(*wanted: str) -> None:
        for component in wanted:
            if component in components and not processes.running(settings, component):
                command = control_plane.component_command(settings, component)
                processes.start(settings, component, [*inside(holder), *command])

    start(control_plane.ETCD, control_plane.API_SERVER)
    api = Api(settings)
    _wait(settings, lambda: api.is_ok("/readyz"), "the API server to be ready", components[:2])
    # Started earlier they would be refused by the API server, and wait before they try again.
    start(control_plane.CONTROLLERS, control_plane.SCHEDULING)
    if control_plane.DNS in components:
        # Its role must exist before it starts: refused once, it waits seconds before it tries again.
        control_plane.apply_dns_objects(api, settings)
        start(control_plane.DNS)
        apply_storage_class(api)
        name = f"kubernetes.default.svc.{CLUSTER_DOMAIN}"
        _wait(
            settings,
            lambda: resolve(name, server=settings.api_address) == settings.kubernetes_service_address,
            f"DNS to answer for {name}",
            (control_plane.DNS,),
        )
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait(
        settings,
        lambda: api.get(account) is not None,
        "the default service account",
        (control_plane.CONTROLLERS,),
    )
    return api


def _start_nodes(settings: ClusterSettings, holder: processes.Process, api: Api, num_nodes: int) -> None:
    nodes = [NodeSettings(settings, index) for index in range(num_nodes)]
    for node in nodes:
        if not processes.running(settings, node.name):
            start_node(node, holder)
    connect_nodes({node: found for node in nodes if (found := processes.running(settings, node.name))})
    for node in nodes:
        logs = (node.name, f"{node.name}-containerd", f"{node.name}-kubelet")
        _wait(settings, lambda node=node: is_containerd_up(node), f"containerd of {node.name}", logs)
        ensure_pause_image(node)
        _wait(settings, lambda node=node: is_node_ready(api, node), f"{node.name} to be Ready", logs)
        apply_volumes(api, node)
    if not processes.running(settings, RECYCLER):
        recycle = [sys.executable, _COMMAND_LINE, "--instance", str(settings.instance), "recycle-volumes"]
        processes.start(
            settings, RECYCLER, recycle, environment={"GRPO_CLUSTER_FOLDER": str(settings.state_dir)}
        )


def is_node_ready(api: Api, node: NodeSettings) -> bool:
    """Whether the node is Ready and has reported to the API server since its process started."""
    process = processes.running(node.cluster, node.name)
    if process is None:
        return False
    try:
        registered = api.get(f"/api/v1/nodes/{node.name}") or {}
        lease = api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}") or {}
    except ApiUnreachable:
        return False
    conditions = registered.get("status", {}).get("conditions", [])
    # A node that was killed and started again is still Ready from before, until it renews its lease.
    # A new node makes its lease only after ten seconds, so its creation counts as well.
    reports = (
        registered.get("metadata", {}).get("creationTimestamp"),
        lease.get("spec", {}).get("renewTime"),
    )
    has_reported = any(
        datetime.fromisoformat(report).timestamp() >= int(process.started_at) for report in reports if report
    )
    return has_reported and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _wait(settings: ClusterSettings, is_true: Callable[[], bool], what: str, logs: tuple[str, ...]) -> None:
    def hint() -> str:
        files = [processes.log_path(settings, name) for name in logs]
        return (
            "\n".join(f"Log: {file}\n{last_lines(file)}" for file in files)
            + "\nThen run `down` and `up` again."
        )

    def is_true_or_dead() -> bool:
        for name in logs:
            process = processes.recorded(settings).get(name)
            if process and not process.is_alive:
                raise ClusterError(f"{name} ended while waiting for {what}\n{hint()}")
        return is_true()

    wait_until(is_true_or_dead, timeout_seconds=START_TIMEOUT_SECONDS, what=what, hint=hint)


@contextmanager
def _lock(settings: ClusterSettings) -> Iterator[None]:
    """Let one up or down run at a time."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(settings.state_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"    another command is working on {settings.name}: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
