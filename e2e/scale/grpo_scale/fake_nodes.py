"""A cluster whose nodes are played by KWOK: API server, controllers, scheduler, and no container."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from grpo_cluster import control_plane, lifecycle, processes
from grpo_cluster.api import Api, Object
from grpo_cluster.binaries import build_all
from grpo_cluster.certificates import ADMIN, KeyFolder
from grpo_cluster.network import HOLDER, inside
from grpo_cluster.settings import REPOSITORY, ClusterError, ClusterSettings
from grpo_cluster.versions import KWOK, program_path
from grpo_cluster.waiting import wait_until

NAMESPACE = "bench"
_STUB = "progress-stub"
_KWOK = "kwok"
_INSTANCE = 5
_NUM_NODES = 10
_PODS_PER_NODE = 1000
_STAGES = Path(__file__).with_name("stages.yaml")


@contextmanager
def fake_cluster() -> Iterator[ClusterSettings]:
    """An empty cluster with fake nodes, the CRD and the namespace; it is taken down at the end.

    Raises ClusterError when a part does not start.
    """
    build_all((KWOK,))
    settings = ClusterSettings.for_instance(_INSTANCE)
    lifecycle.down(settings)
    try:
        lifecycle.up(settings, num_nodes=0)
        _start_what_plays_nodes(settings)
        api = Api(settings)
        for index in range(_NUM_NODES):
            api.apply("/api/v1/nodes", _node(index))
        _install(api)
        wait_until(lambda: _is_ready(api), timeout_seconds=60, what="the fake nodes and the CRD to be ready")
        yield settings
    finally:
        lifecycle.down(settings)


def in_cluster_network(settings: ClusterSettings) -> list[str]:
    """Prefix for a command: it reaches the pods' addresses, which exist in the cluster's network only."""
    holder = processes.running(settings, HOLDER)
    if holder is None:
        raise ClusterError("the cluster's network is gone: run the command again")
    return inside(holder)


def _start_what_plays_nodes(settings: ClusterSettings) -> None:
    """The scheduler without the rate limit that would bound the measurement, KWOK, and the stub, which gets
    every connection to a pod's address."""
    prefix = in_cluster_network(settings)
    keys = KeyFolder(settings.keys)
    admin = str(settings.kubeconfig)
    scheduler = [*control_plane.component_command(settings, control_plane.SCHEDULING)]
    scheduler += ["--kube-api-qps=1000", "--kube-api-burst=2000"]
    processes.start(settings, control_plane.SCHEDULING, [*prefix, *scheduler])
    kwok = [
        program_path("kwok"),
        f"--kubeconfig={admin}",
        f"--config={_STAGES}",
        f"--cidr={settings.pod_range}",
    ]
    kwok += [
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
    ]
    processes.start(settings, _KWOK, [*prefix, *kwok])
    route = ["sh", "-c", f"ip link set lo up; exec ip route replace local {settings.pod_range} dev lo"]
    processes.start(settings, "route", [*prefix, *route])
    stub = [sys.executable, Path(__file__).with_name("progress_stub.py"), settings.api_url]
    stub += [keys.authority, keys.certificate(ADMIN), keys.key(ADMIN)]
    environment = {"PYTHONPATH": str(REPOSITORY / "crds")}
    processes.start(settings, _STUB, [*prefix, *stub], environment=environment)


def _install(api: Api) -> None:
    crd = yaml.safe_load((REPOSITORY / "crds/grpojobs.yaml").read_text())
    api.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    api.apply(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    account = {"name": "operator", "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    api.apply(
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
    )
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "bench-operator"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    api.apply(f"/apis/{rbac}/v1/clusterrolebindings", binding)


def _node(index: int) -> Object:
    room = {"cpu": "100000", "memory": "1000Ti", "nvidia.com/gpu": "100000", "pods": str(_PODS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"fake-{index}", "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": room, "capacity": room},
    }


def _is_ready(api: Api) -> bool:
    nodes = api.items("/api/v1/nodes")
    ready = [c for node in nodes for c in node["status"].get("conditions", ()) if c["type"] == "Ready"]
    are_ready = len(ready) == _NUM_NODES and all(c["status"] == "True" for c in ready)
    account = api.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
    return are_ready and account is not None and api.is_ok("/apis/grpo.dev/v1alpha1/grpojobs")
