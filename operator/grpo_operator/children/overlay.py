"""What `podTemplate` of a role adds to its pods. Pure."""

from grpo_api.core_v1.types import VolumeMount
from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec, PodVolume
from grpo_operator.children.mounts import Mount
from grpo_operator.children.template import literal
from grpo_operator.cluster.kinds import KubeObject

_COPIED = {
    "nodeSelector",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "serviceAccountName",
    "resourceClaims",
}
"""Fields of the pod that only a job sets."""


def own_mounts(template: PodTemplateSpec | None) -> list[Mount]:
    """The volumes that a job brings, at each path where it mounts them."""
    if template is None or template.container is None:
        return []
    volumes = {volume.name: volume for volume in (template.spec and template.spec.volumes) or ()}
    return [_own_mount(mount, volumes[mount.name]) for mount in template.container.volume_mounts or ()]


def _own_mount(mount: VolumeMount, volume: PodVolume) -> Mount:
    claim = volume.persistent_volume_claim
    return Mount(
        literal(mount.name),
        literal(mount.mount_path),
        source=None if claim else _source(volume),
        claim=literal(claim.claim_name) if claim else "",
        sub_path=literal(mount.sub_path or ""),
        is_read_only=bool(mount.read_only or (claim and claim.read_only)),
    )


def _source(volume: PodVolume) -> KubeObject:
    """The source of a volume, without its name."""
    return {key: value for key, value in literal(volume.to_object()).items() if key != "name"}


def with_overlay(pod: KubeObject, template: PodTemplateSpec | None) -> KubeObject:
    """A pod with what its job adds, apart from volumes. What the operator has set stays: of metadata,
    tolerations and variables there is more than before, and every other field is one that it leaves open."""
    if template is None:
        return pod
    metadata, spec, container = (
        literal(part.to_object()) if part is not None else {}
        for part in (template.metadata, template.spec, template.container)
    )
    [own] = pod["spec"]["containers"]
    own = {**own, "env": [*own["env"], *container.get("env", ())]}
    own |= {key: container[key] for key in ("envFrom", "imagePullPolicy") if key in container}
    if claims := spec.get("resourceClaims"):
        own["resources"] = own["resources"] | {"claims": [{"name": claim["name"]} for claim in claims]}
    merged = {
        **pod["spec"],
        **{key: value for key, value in spec.items() if key in _COPIED},
        "tolerations": [*pod["spec"]["tolerations"], *spec.get("tolerations", ())],
        "containers": [own],
    }
    if template.has_host_network:
        merged |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {**pod, "metadata": _with_metadata(pod["metadata"], metadata), "spec": merged}


def _with_metadata(own: KubeObject, added: KubeObject) -> KubeObject:
    labels = {**added.get("labels", {}), **own["labels"]}
    annotations = added.get("annotations")
    return {**own, "labels": labels, **({"annotations": annotations} if annotations else {})}
