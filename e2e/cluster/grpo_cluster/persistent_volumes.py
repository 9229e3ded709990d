"""Local PersistentVolumes for claims. A volume whose claim is deleted is emptied and offered again."""

import os
import shutil
from pathlib import Path

from grpo_cluster.api import Api, ApiUnreachable, Object
from grpo_cluster.settings import ClusterSettings, NodeSettings
from grpo_cluster.waiting import wait_until

NUM_VOLUMES_PER_NODE = 16
"""More than the claims of a file of scenarios, which are deleted with its namespace."""
STORAGE_CLASS = "local"
_VOLUMES = "/api/v1/persistentvolumes"
_WATCH_SECONDS = 300


def apply_storage_class(api: Api) -> None:
    """Create the default class. A claim is bound when its pod is scheduled, to a volume of the pod's node."""
    api.apply(
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Retain",
        },
    )


def apply_volumes(api: Api, node: NodeSettings) -> None:
    """Create the node's volumes, which are empty folders in the state directory."""
    existing = {volume["metadata"]["name"] for volume in api.items(_VOLUMES)}
    for number in range(NUM_VOLUMES_PER_NODE):
        volume = _volume(node, number)
        if volume["metadata"]["name"] not in existing:
            _make_empty(Path(volume["spec"]["local"]["path"]))
            api.apply(_VOLUMES, volume)


def recycle_released_volumes(settings: ClusterSettings) -> None:
    """Recycle volumes as they are released, without end; waits while the API server does not answer.

    Only one process per cluster may do this: a second one could empty a volume that the first has already
    offered and a new claim has taken.
    """
    api = Api.of(settings)
    while True:
        try:
            for event in api.watch(_VOLUMES, timeout_seconds=_WATCH_SECONDS):
                if event["type"] in ("ADDED", "MODIFIED"):
                    _recycle(api, settings, event["object"])
        except ApiUnreachable as error:
            print(error, flush=True)
            wait_until(
                lambda: api.is_ok("/readyz"), timeout_seconds=3600, poll_seconds=0.5, what="the API server"
            )


def _recycle(api: Api, settings: ClusterSettings, volume: Object) -> None:
    """Empty a volume whose claim is gone and offer it again."""
    folder = Path(volume["spec"].get("local", {}).get("path", "/"))
    # claimRef is removed when the volume is offered again, a moment before the phase changes
    claim = volume["spec"].get("claimRef")
    is_released = volume.get("status", {}).get("phase") == "Released" and claim is not None
    if not is_released or not folder.is_relative_to(settings.volumes):
        return
    _make_empty(folder)
    # The tests make sure that it is still released and refers to the same claim: without claimRef the claim
    # of a bound volume would be lost.
    api.patch_json(
        f"{_VOLUMES}/{volume['metadata']['name']}",
        [
            {"op": "test", "path": "/spec/claimRef/uid", "value": claim["uid"]},
            {"op": "test", "path": "/status/phase", "value": "Released"},
            {"op": "remove", "path": "/spec/claimRef"},
        ],
    )


def _make_empty(folder: Path) -> None:
    """Empty the folder itself instead of making it anew: the node has mounted its inode."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    os.chown(folder, 0, 0)  # a pod's fsGroup may have changed it
    folder.chmod(0o755)


def _volume(node: NodeSettings, number: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{node.name}-volume-{number}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(node.cluster.volumes / node.name / f"volume-{number}")},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
                            ]
                        }
                    ]
                }
            },
        },
    }
