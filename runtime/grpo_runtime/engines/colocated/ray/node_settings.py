"""How the Ray node of a pod is started, and the environment of all that talks to it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_runtime.engines.colocated.ray.node_folder import RAY_FOLDER, TOKEN_FILE
from grpo_runtime.engines.colocated.ray.placement import RayShape, node_resource

OBJECT_STORE_BYTES = 80_000_000
"""Nothing large goes through Ray, and it refuses less than 75 MB. It lies in /dev/shm, beside the weights."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class NodePlace:
    """Which pod a node is started in. `address` is the pod's own, and LOOPBACK where all pods are on one
    machine; `head` is where the first node listens, and None on that one. `folder` is the node's."""

    pod: int
    shape: RayShape
    address: str
    head: str | None
    folder: Path


def node_settings(place: NodePlace) -> dict[str, Any]:
    """The names are those of Ray's `RayParams`."""
    shape = place.shape
    of_head = {"gcs_server_port": 0, "include_dashboard": False, "no_monitor": True}
    return {
        **(of_head if place.head is None else {"gcs_address": place.head}),
        "node_ip_address": place.address,
        "temp_dir": str(place.folder / RAY_FOLDER),
        "num_cpus": shape.ranks_per_pod,
        "num_gpus": shape.ranks_per_pod if shape.has_gpus else 0,
        "resources": {node_resource(place.pod): 1.0},
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
