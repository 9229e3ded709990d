"""How the Ray cluster of a job is laid out: the node of each pod, the bundles of the placement group, and the
environment of all that talks to Ray. Pure.

There is one group for the job with one bundle for each rank, whose index is the number of the rank. A
resource of each node that bears the number of its pod keeps a bundle in the pod of its rank: the engine
shares memory with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_runtime.engines.colocated.ray.node_folder import RAY_FOLDER, TOKEN_FILE

NAMESPACE = "grpo"
GROUP_NAME = "ranks"
LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 80_000_000
"""Nothing large goes through Ray, and it refuses less than 75 MB. It lies in /dev/shm, beside the weights."""
_NODE_FRACTION = 0.001
"""How much of a node's own resource a bundle takes: any number of bundles must fit."""
_CPUS_OF_BUNDLE = 1.0
ENGINE_GPUS = 0.5
"""The engine's fraction of the GPU of a bundle; the rank has the rest. Ray only counts: what each takes of
the memory is decided as for every other engine in its own process."""

Resources = dict[str, float]


@dataclass(frozen=True)
class RayShape:
    """The ranks of a job as Ray sees them. On GPUs each has one."""

    num_pods: int
    ranks_per_pod: int
    has_gpus: bool


def node_resource(pod: int) -> str:
    """The resource that only the node of this pod has."""
    return f"trainer-pod-{pod}"


def bundles(shape: RayShape) -> list[Resources]:
    """The bundles of the placement group, by rank."""
    ranks = range(shape.num_pods * shape.ranks_per_pod)
    gpus: Resources = {"GPU": 1.0} if shape.has_gpus else {}
    return [
        {"CPU": _CPUS_OF_BUNDLE, **gpus, node_resource(rank // shape.ranks_per_pod): _NODE_FRACTION}
        for rank in ranks
    ]


def actor_gpus(shape: RayShape) -> float:
    """What an engine takes of the GPU in its bundle."""
    return ENGINE_GPUS if shape.has_gpus else 0.0


@dataclass(frozen=True)
class NodeOptions:
    """What the node of a pod is started with. `address` is the pod's own, and LOOPBACK where all pods are on
    one machine; `head` is where the first node listens, and None on that one. `folder` is the node's."""

    pod: int
    shape: RayShape
    address: str
    head: str | None
    folder: Path


def node_settings(options: NodeOptions) -> dict[str, Any]:
    """The names are those of Ray's `RayParams`."""
    shape = options.shape
    of_head = {"gcs_server_port": 0, "include_dashboard": False, "no_monitor": True}
    return {
        **(of_head if options.head is None else {"gcs_address": options.head}),
        "node_ip_address": options.address,
        "temp_dir": str(options.folder / RAY_FOLDER),
        "num_cpus": shape.ranks_per_pod,
        "num_gpus": shape.ranks_per_pod if shape.has_gpus else 0,
        "resources": {node_resource(options.pod): 1.0},
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_log_monitor": False,
    }


def ray_environment(environment: Mapping[str, str], *, folder: Path, address: str) -> dict[str, str]:
    """`environment` for all that talks to Ray, in the pod with this address. What a user has set for another
    cluster does not count."""
    foreign = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE", "RAY_RUNTIME_ENV_HOOK", "RAY_START_HOOK")
    kept = {name: value for name, value in environment.items() if name not in foreign}
    return kept | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN_FILE),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        # each would be a process that waits for work that never comes
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # with 0 Ray leaves the loopback address as it is; else it takes one that others reach instead
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if address == LOOPBACK else "1",
        # it would kill engines before the pod's own limit is reached, and say nothing
        "RAY_memory_monitor_refresh_ms": "0",
    }
