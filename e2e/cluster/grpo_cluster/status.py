"""The state of a cluster, as tables for people."""

import shutil
from collections.abc import Sequence

from grpo_cluster import processes
from grpo_cluster.api import Api, ApiUnreachable
from grpo_cluster.images import image_names, running_nodes
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.versions import MODULES


def describe(settings: ClusterSettings) -> str:
    """The cluster's processes, nodes, volumes, images, versions and disk."""
    found = processes.recorded(settings)
    if not found:
        return f"cluster {settings.name}: down ({settings.state_dir})"
    sections = [
        f"cluster {settings.name}: {settings.api_url}, kubeconfig {settings.kubeconfig}",
        _process_table(found),
        _node_table(settings),
        _image_table(settings),
        "versions: "
        + ", ".join(f"{module.name} {module.version}" for module in MODULES if module.name != "pause"),
        f"disk: {_gigabytes(shutil.disk_usage(settings.state_dir).free)} free at {settings.state_dir}",
    ]
    return "\n\n".join(section for section in sections if section)


def is_healthy(settings: ClusterSettings) -> bool:
    """Whether everything that was started is alive and the API server answers."""
    found = processes.recorded(settings)
    return (
        bool(found)
        and all(process.is_alive for process in found.values())
        and Api.of(settings).is_ok("/readyz")
    )


def _process_table(found: dict[str, processes.Process]) -> str:
    rows = [("PROCESS", "PID", "STATE", "AGE", "MEMORY")]
    for name, process in found.items():
        if process.is_alive:
            memory = f"{process.resident_bytes / 2**20:.0f} MB"
            rows.append((name, str(process.pid), "running", _age(process.age_seconds), memory))
        else:
            rows.append((name, str(process.pid), "DEAD", "-", "-"))
    return _table(rows)


def _node_table(settings: ClusterSettings) -> str:
    try:
        api = Api.of(settings)
        nodes = api.items("/api/v1/nodes")
        pods = api.items("/api/v1/pods")
        volumes = api.items("/api/v1/persistentvolumes")
    except ApiUnreachable as error:
        return f"API server: {error}"
    rows = [("NODE", "READY", "VERSION", "PODS", "FREE VOLUMES")]
    for node in nodes:
        name = node["metadata"]["name"]
        ready = next((c["status"] for c in node["status"].get("conditions", []) if c["type"] == "Ready"), "?")
        num_pods = sum(pod["spec"].get("nodeName") == name for pod in pods)
        own = [volume for volume in volumes if volume["metadata"]["name"].startswith(f"{name}-")]
        num_free = sum(volume.get("status", {}).get("phase") == "Available" for volume in own)
        version = node["status"]["nodeInfo"]["kubeletVersion"]
        rows.append((name, ready, version, str(num_pods), f"{num_free}/{len(own)}"))
    return _table(rows)


def _image_table(settings: ClusterSettings) -> str:
    rows = [("NODE", "IMAGE")]
    for node in running_nodes(settings):
        try:
            rows += [(node.name, name) for name in image_names(node)]
        except ClusterError as error:
            rows.append((node.name, str(error)))
    return _table(rows) if len(rows) > 1 else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
