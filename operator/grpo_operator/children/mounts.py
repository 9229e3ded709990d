"""What a pod mounts from its namespace: claims, ConfigMaps and their paths in the container."""

from collections.abc import Iterable
from dataclasses import dataclass

from grpo_api.resolve import (
    credentials_of,
    resumed_volumes_of,
    secrets_of,
    volumes_of,
    weights_secrets_of,
    weights_volumes_of,
)
from grpo_api.source import Volume, VolumeKind
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import KubeObject

VOLUMES_DIR = "/grpo/volumes"
HUB_DIR = "/grpo/hub"
HUB_TOKEN_DIR = "/etc/grpo/hub-token"  # noqa: S105 - a directory
HUB_TOKEN_KEY = "token"  # noqa: S105 - the name of a key


@dataclass(frozen=True)
class Mount:
    """A volume and where it is mounted. `name` is that of the volume. `source` is the part of the volume's
    entry in the pod spec that says what it is; for a claim, `claim` names it instead."""

    name: str
    path: str
    source: KubeObject | None = None
    claim: str = ""
    sub_path: str = ""
    is_read_only: bool = False


def sources(snapshot: JobSnapshot) -> list[Mount]:
    """The claims and ConfigMaps of model, dataset and rewards, read-only, where the runtime looks."""
    found = []
    for index, volume in enumerate(volumes_of(snapshot.config)):
        name, path = f"source-{index}", f"{VOLUMES_DIR}/{volume.folder}"
        if volume.kind is VolumeKind.CLAIM:
            found.append(Mount(name, path, claim=volume.name, is_read_only=True))
        else:
            found.append(Mount(name, path, {"configMap": {"name": volume.name}}, is_read_only=True))
    return found


def resumed(snapshot: JobSnapshot) -> list[Mount]:
    """The claim with the checkpoint that the run begins with, read-only, where the runtime looks. The job's
    own checkpoints may be on the same claim, in a folder of their own."""
    return [
        Mount("resumed", f"{VOLUMES_DIR}/{volume.folder}", claim=volume.name, is_read_only=True)
        for volume in resumed_volumes_of(snapshot.config)
    ]


def weights(snapshot: JobSnapshot, *, is_writer: bool) -> list[Mount]:
    """The claim that weights travel by, which only the first trainer pod writes to."""
    return [
        Mount(
            "source-weights", f"{VOLUMES_DIR}/{volume.folder}", claim=volume.name, is_read_only=not is_writer
        )
        for volume in weights_volumes_of(snapshot.config)
    ]


def weights_secrets(snapshot: JobSnapshot) -> list[Mount]:
    """The credentials of the bucket that weights travel by, for a pod that only reads them."""
    return _secrets(weights_secrets_of(snapshot.config))


def hub_cache(snapshot: JobSnapshot) -> list[Mount]:
    """The claim with the Hub's cache. Offline nothing is written to it, so it may be a read-only claim."""
    hub = snapshot.spec.hub
    if hub.cache_claim is None:
        return []
    return [Mount("hub", HUB_DIR, claim=hub.cache_claim, is_read_only=hub.offline)]


def compiled_cache(snapshot: JobSnapshot, *, path: str) -> list[Mount]:
    """The claim with what the job's engines compile, in a folder of this job. All its pods run one build of
    the image, so the folder fits every one of them."""
    claim = snapshot.spec.engine.compiled_cache_claim
    return [Mount("compiled", path, claim=claim, sub_path=snapshot.names.base)] if claim else []


def hub_token(snapshot: JobSnapshot) -> list[Mount]:
    """The Hub's access token, as a file that only the group of the pod's user may read. Every pod loads the
    model, so every pod has it. It goes from the user's Secret to the pod; the operator never sees it."""
    name = snapshot.spec.hub.token_secret
    if name is None:
        return []
    items = [{"key": HUB_TOKEN_KEY, "path": HUB_TOKEN_KEY}]
    secret = {"secretName": name, "defaultMode": 0o440, "items": items}
    return [Mount("hub-token", HUB_TOKEN_DIR, {"secret": secret}, is_read_only=True)]


def secrets(snapshot: JobSnapshot) -> list[Mount]:
    """The credentials of reward services, uploads, trackers and the bucket of weights."""
    run = snapshot.config
    return _secrets({*secrets_of(run), *credentials_of(run), *weights_secrets_of(run)})


def _secrets(volumes: Iterable[Volume]) -> list[Mount]:
    """Secrets as files that only the group of the pod's user may read."""
    return [
        Mount(
            f"secret-{index}",
            f"{VOLUMES_DIR}/{volume.folder}",
            {"secret": {"secretName": volume.name, "defaultMode": 0o440}},
            is_read_only=True,
        )
        for index, volume in enumerate(sorted(volumes))
    ]


def volumes_and_mounts(mounts: Iterable[Mount]) -> tuple[list[KubeObject], list[KubeObject]]:
    """The `volumes` of a pod and the `volumeMounts` of its container.

    A claim that is used twice is one volume with two mounts: a kubelet may never finish mounting a second
    volume of the same claim. Where no mount writes to it, the volume itself is read-only too: else the
    kubelet would change the group of each of its files to the pod's.
    """
    mounts = list(mounts)
    volumes: dict[str, KubeObject] = {}
    of_claim: dict[str, str] = {}
    mounted = []
    for mount in mounts:
        name = of_claim.setdefault(mount.claim, mount.name) if mount.claim else mount.name
        if mount.claim:
            is_read_only = all(other.is_read_only for other in mounts if other.claim == mount.claim)
            volumes[name] = {"name": name, "persistentVolumeClaim": _claim(mount.claim, is_read_only)}
        else:
            volumes[name] = {"name": name, **(mount.source or {})}
        mounted.append(
            {"name": name, "mountPath": mount.path}
            | ({"subPath": mount.sub_path} if mount.sub_path else {})
            | ({"readOnly": True} if mount.is_read_only else {})
        )
    return list(volumes.values()), mounted


def _claim(name: str, is_read_only: bool) -> KubeObject:
    return {"claimName": name} | ({"readOnly": True} if is_read_only else {})
