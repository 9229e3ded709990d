"""Checks each pod before it is created, whatever it was made from: it has nothing that Pod Security
`restricted` refuses, nor certain rights besides. Pure.

A namespace need not enforce `restricted`, and a user who may create GRPOJobs or ConfigMaps in it need not be
allowed to create pods.
"""

from collections.abc import Iterator, Mapping

from grpo_api.v1alpha1.spec.pod_template import PodTemplateSpec
from grpo_operator.cluster.kinds import KubeObject

_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "csi"}
_POD_FIELDS = ("hostPID", "hostIPC", "shareProcessNamespace", "initContainers", "ephemeralContainers")
_POD_CONTEXT = {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "seccompProfile"}
_CONTAINER_CONTEXT = {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of the annotations that choose an AppArmor profile, one for each container."""


def problems_of_pod(pod: KubeObject, *, allowed: PodTemplateSpec | None) -> list[str]:
    """Everything that Pod Security `restricted` forbids in a pod. `allowed` is the job's own `podTemplate`,
    which may name a ServiceAccount and ask for the network of the node."""
    metadata, spec = pod["metadata"], pod["spec"]
    return [
        *_of_annotations(metadata.get("annotations", {})),
        *_of_identity(spec, allowed),
        *(f"spec.{field}" for field in _POD_FIELDS if spec.get(field)),
        *_of_volumes(spec),
        *_of_context(spec.get("securityContext", {})),
        *_of_containers(spec["containers"]),
    ]


def _of_annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    for name, profile in annotations.items():
        if name.startswith(_APPARMOR) and not profile.startswith(("runtime/default", "localhost/")):
            yield f"annotation {name}={profile}"


def _of_identity(spec: KubeObject, allowed: PodTemplateSpec | None) -> Iterator[str]:
    settings = allowed.spec if allowed is not None else None
    if spec.get("hostNetwork") and not (allowed is not None and allowed.has_host_network):
        yield "spec.hostNetwork"
    account = spec.get("serviceAccountName", spec.get("serviceAccount"))
    if account is not None and account != (settings.service_account_name if settings else None):
        yield f"spec.serviceAccountName {account}"
    if spec.get("automountServiceAccountToken") is not False:
        yield "the token of its ServiceAccount"


def _of_volumes(spec: KubeObject) -> Iterator[str]:
    for volume in spec.get("volumes", ()):
        if others := volume.keys() - _VOLUMES - {"name"}:
            yield f"a volume of {', '.join(sorted(others))}"


def _of_context(context: KubeObject) -> Iterator[str]:
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield "the user root"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "every system call"
    yield from (f"spec.securityContext.{field}" for field in sorted(context.keys() - _POD_CONTEXT))


def _of_containers(containers: list[KubeObject]) -> Iterator[str]:
    if len(containers) != 1:
        yield f"{len(containers)} containers"
    for container in containers:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield "capabilities"
        yield from (f"securityContext.{field}" for field in sorted(context.keys() - _CONTAINER_CONTEXT))
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield "a port of its node"
        if container.get("volumeDevices"):
            yield "volumeDevices"
