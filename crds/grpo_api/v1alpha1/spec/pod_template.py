"""`podTemplate` of trainer and rollout: what a job adds to its pods.

An allow-list: what a pod may do beyond that is decided by the operator, so that creating a job means no more
than creating its pods. The API server drops a field that the schema does not have before any rule sees it; so
what people will try is declared, only to be refused with a sentence.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from grpo_api import cel
from grpo_api.core_v1.types import (
    Affinity,
    ConfigMapVolumeSource,
    CSIVolumeSource,
    EmptyDirVolumeSource,
    EnvFromSource,
    EnvVar,
    PersistentVolumeClaimVolumeSource,
    PodResourceClaim,
    SecretVolumeSource,
    Toleration,
    TopologySpreadConstraint,
    VolumeMount,
)
from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity, is_quantity
from grpo_api.rule import KeyedBy, TextRule, refused, rule
from grpo_api.v1alpha1.spec.fields import ClaimName

OWNED_PREFIXES = ("grpo.dev/", "app.kubernetes.io/")
"""How labels and annotations begin that the operator writes."""
OWNED_VARIABLES = (
    "HOME", "USER", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN",
    "HF_TOKEN_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE",
    "VLLM_CACHE_ROOT", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_INSECURE_SERIALIZATION",
)  # fmt: skip
"""Variables that belong to the operator or would open what the guard of an engine closes. So does every name
that begins with GRPO_."""
OWNED_PREFIX_OF_VARIABLES = "GRPO_"
OWNED_VOLUMES = ("config", "tokens", "cache", "tmp", "shm", "output", "hub", "hub-token", "resumed")
"""Names of the operator's volumes, beside numbered ones."""
OWNED_PREFIXES_OF_VOLUMES = ("source-", "secret-")

_Object = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
_Objects = Annotated[tuple[_Object, ...], Field(max_length=64)]
"""Values of fields that are refused, whatever is in them."""
Name = Annotated[str, Field(min_length=1, max_length=253)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


def _cel_any(operation: str, values: tuple[str, ...]) -> str:
    return " || ".join(f"{operation}('{value}')" for value in values)


@rule(
    cel=f"!has(self.labels) || !self.labels.exists(name, {_cel_any('name.startsWith', OWNED_PREFIXES)})",
    sentence="podTemplate.metadata.labels must not begin with grpo.dev/ or app.kubernetes.io/, which the "
    "operator finds its pods by: use a prefix of your own",
    field=".labels",
)
def labels_are_not_owned(labels: Labels | None) -> bool:
    """No pod is taken for another."""
    return not any(name.startswith(OWNED_PREFIXES) for name in labels or {})


@rule(
    cel="!has(self.annotations) || "
    f"!self.annotations.exists(name, {_cel_any('name.startsWith', OWNED_PREFIXES)})",
    sentence="podTemplate.metadata.annotations must not begin with grpo.dev/ or app.kubernetes.io/, which "
    "are the operator's: use a prefix of your own",
    field=".annotations",
)
def annotations_are_not_owned(annotations: Annotations | None) -> bool:
    """Annotations that a later release writes do not collide with a user's."""
    return not any(name.startswith(OWNED_PREFIXES) for name in annotations or {})


class PodMetadata(ApiModel):
    """Labels and annotations of the pods."""

    rules = (labels_are_not_owned, annotations_are_not_owned)

    labels: Labels | None = None
    """Labels in addition to those of the operator."""
    annotations: Annotations | None = None
    """Annotations, such as those that a network plugin or a queue reads."""


@rule(
    cel="[has(self.persistentVolumeClaim), has(self.configMap), has(self.secret), has(self.emptyDir), "
    "has(self.csi)].filter(given, given).size() == 1",
    sentence="a volume needs exactly one source: set persistentVolumeClaim, configMap, secret, emptyDir or "
    "csi, and no other",
)
def volume_has_one_source(
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None,
    config_map: ConfigMapVolumeSource | None,
    secret: SecretVolumeSource | None,
    empty_dir: EmptyDirVolumeSource | None,
    csi: CSIVolumeSource | None,
) -> bool:
    """The API server checks the volumes of a pod in the same way."""
    sources = (persistent_volume_claim, config_map, secret, empty_dir, csi)
    return sum(source is not None for source in sources) == 1


@rule(
    cel=f"!(self.name in {cel.list_of(OWNED_VOLUMES)}) && "
    f"!({_cel_any('self.name.startsWith', OWNED_PREFIXES_OF_VOLUMES)})",
    sentence=f"the name of a volume must not be {', '.join(OWNED_VOLUMES)}, source-* or secret-*, which are "
    "the operator's: choose another",
    field=".name",
)
def volume_name_is_not_owned(name: str) -> bool:
    """Two volumes of a pod cannot have one name."""
    return name not in OWNED_VOLUMES and not name.startswith(OWNED_PREFIXES_OF_VOLUMES)


@rule(
    cel="!has(self.emptyDir) || !has(self.emptyDir.sizeLimit) || "
    f"{cel.is_quantity('self.emptyDir.sizeLimit')}",
    sentence="emptyDir.sizeLimit is not an amount that Kubernetes reads: write a number with a unit, such as "
    "64Gi, and not 64GB or 1,5",
    field=".emptyDir.sizeLimit",
)
def size_limit_is_a_quantity(empty_dir: EmptyDirVolumeSource | None) -> bool:
    """The API server checks the volumes of a pod in the same way."""
    return empty_dir is None or empty_dir.size_limit is None or is_quantity(empty_dir.size_limit)


class PodVolume(ApiModel):
    """A volume of the pods, from one of the sources that need no rights on the node."""

    rules = (
        refused(
            "hostPath",
            "hostPath is refused, because it would give the job files of its node: use a "
            "persistentVolumeClaim, or a csi volume",
        ),
        volume_has_one_source,
        volume_name_is_not_owned,
        size_limit_is_a_quantity,
    )

    name: Name
    """Name that volumeMounts refers to."""
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    """A claim in the job's namespace. With readOnly the kubelet does not change the group of its files."""
    config_map: ConfigMapVolumeSource | None = None
    """A ConfigMap as files."""
    secret: SecretVolumeSource | None = None
    """A Secret as files."""
    empty_dir: EmptyDirVolumeSource | None = None
    """Scratch space. With medium Memory it counts as memory of the pod."""
    csi: CSIVolumeSource | None = None
    """A volume that a CSI driver makes for each pod, such as one with credentials from a vault."""
    host_path: _Object | None = None
    """Refused."""


class PodSettings(ApiModel):
    """Fields of a pod's spec."""

    rules = (
        refused(
            "securityContext",
            "podTemplate.spec.securityContext is refused, because the pods of a job keep to Pod "
            "Security restricted: remove it, and make volumes readable for group 1000",
        ),
        refused(
            "hostPID",
            "podTemplate.spec.hostPID is refused, because the pods of a job do not see the processes of "
            "their node: remove it",
        ),
        refused(
            "hostIPC",
            "podTemplate.spec.hostIPC is refused, because the pods of a job share no memory with others of "
            "their node: remove it, and see podTemplate.sharedMemory for the size of /dev/shm",
        ),
        refused(
            "containers",
            "podTemplate.spec.containers is refused, because the one container of a pod is the operator's: "
            "set env, envFrom and volumeMounts in podTemplate.container, and resources beside podTemplate",
        ),
        refused(
            "initContainers",
            "podTemplate.spec.initContainers is refused, because the pods of a job have no other containers: "
            "put files on a volume beforehand, or into the image of spec.image",
        ),
        refused(
            "restartPolicy",
            "podTemplate.spec.restartPolicy is refused, because the operator restarts what ends: remove it, "
            "and see spec.failurePolicy",
        ),
        refused(
            "imagePullSecrets",
            "podTemplate.spec.imagePullSecrets is refused, because all pods of a job have one image: use "
            "spec.imagePullSecrets",
        ),
        refused(
            "nodeName",
            "podTemplate.spec.nodeName is refused, because it would bypass the scheduler: use "
            "nodeSelector with kubernetes.io/hostname",
        ),
    )

    node_selector: Labels | None = None
    """Labels that a node must have."""
    affinity: Affinity | None = None
    """Which nodes, and which other pods on them, the pods want or avoid."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """Taints of nodes that the pods tolerate, such as those of GPU nodes. Whatever is set here, pods leave a
    node that is not ready or unreachable after 30 s."""
    topology_spread_constraints: (
        Annotated[tuple[TopologySpreadConstraint, ...], Field(max_length=8)] | None
    ) = None
    """How the pods are spread over zones, racks or nodes."""
    priority_class_name: ClaimName | None = None
    """PriorityClass of the pods."""
    scheduler_name: ClaimName | None = None
    """Scheduler of the pods."""
    runtime_class_name: ClaimName | None = None
    """RuntimeClass of the pods, such as nvidia."""
    service_account_name: ClaimName | None = None
    """ServiceAccount of the pods, for the identity that a cloud gives it. No token of the API server is
    mounted. The operator must allow it, with `podTemplates.serviceAccounts` of its chart."""
    volumes: Annotated[tuple[PodVolume, ...], Field(max_length=16), KeyedBy("name")] | None = None
    """Volumes in addition to those of the operator. podTemplate.container.volumeMounts mounts them."""
    resource_claims: Annotated[tuple[PodResourceClaim, ...], Field(max_length=16), KeyedBy("name")] | None = (
        None
    )
    """GPUs by dynamic resource allocation. The container uses all claims. A claim does not say how many GPUs
    it has: for a trainer processesPerNode says it, for a rollout pod the parallel sizes of `engine`."""
    termination_grace_period_seconds: Annotated[int, Field(ge=30, le=86_400)] | None = None
    """How long a pod may take to end; a trainer saves a checkpoint in this time. Defaults to 30 for a rollout
    pod, and for a trainer pod to what its saves need, as far as that is known, and at least to 60."""
    host_network: bool | None = None
    """Use the network of the node, as some fast networks need. NetworkPolicies do not hold there, and two
    pods with the same port cannot be on one node. The operator must allow it, with `podTemplates.hostNetwork`
    of its chart, and the namespace needs Pod Security `privileged`."""
    security_context: _Object | None = None
    """Refused."""
    host_pid: bool | None = Field(default=None, alias="hostPID")
    """Refused."""
    host_ipc: bool | None = Field(default=None, alias="hostIPC")
    """Refused."""
    containers: _Objects | None = None
    """Refused: see podTemplate.container."""
    init_containers: _Objects | None = None
    """Refused."""
    restart_policy: Annotated[str, Field(max_length=63)] | None = None
    """Refused: see spec.failurePolicy."""
    image_pull_secrets: _Objects | None = None
    """Refused: see spec.imagePullSecrets."""
    node_name: Annotated[str, Field(max_length=253)] | None = None
    """Refused: see nodeSelector."""


@rule(
    cel="!has(self.env) || !self.env.exists(variable, "
    f"variable.name in {cel.list_of(OWNED_VARIABLES)} || "
    f"variable.name.startsWith('{OWNED_PREFIX_OF_VARIABLES}'))",
    sentence="podTemplate.container.env sets a variable that is the operator's (GRPO_*, HOME, HF_HOME and "
    "others): remove it; caches are set by spec.hub",
    field=".env",
)
def variables_are_not_owned(env: tuple[EnvVar, ...] | None) -> bool:
    """The product relies on the variables that it sets."""
    return not any(
        variable.name in OWNED_VARIABLES or variable.name.startswith(OWNED_PREFIX_OF_VARIABLES)
        for variable in env or ()
    )


_OWNED_PATHS = TextRule(
    r"^(/etc|/(cache|dev|etc/grpo|grpo|output|proc|sys|tmp)(/.*)?|/|[^/].*)?$|/\.\.?(/|$)|//|./$",
    "is not free: mount it elsewhere",
    is_refused=True,
)


@rule(
    cel="!has(self.volumeMounts) || "
    f"!self.volumeMounts.exists(mount, mount.mountPath.matches(r'''{_OWNED_PATHS.pattern}'''))",
    sentence="podTemplate.container.volumeMounts has a mountPath that is relative, has one / too many, "
    "or hides a directory of the system or of the operator (/cache, /dev, /etc/grpo, /grpo, "
    "/output, /tmp): mount it elsewhere, such as below /mnt",
    field=".volumeMounts",
)
def mounts_hide_nothing(volume_mounts: tuple[VolumeMount, ...] | None) -> bool:
    """No volume lies over what the product reads or writes."""
    return all(_OWNED_PATHS.holds(mount.mount_path) for mount in volume_mounts or ())


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PodContainer(ApiModel):
    """Fields of the one container of a pod."""

    rules = (
        refused(
            "securityContext",
            "podTemplate.container.securityContext is refused, because the pods of a job keep to Pod "
            "Security restricted: remove it",
        ),
        refused(
            "image",
            "podTemplate.container.image is refused, because all pods of a job have one image: use "
            "spec.image",
        ),
        refused(
            "resources",
            "podTemplate.container.resources is refused, because the operator computes with them: use "
            "resources beside podTemplate",
        ),
        refused(
            "command",
            "podTemplate.container.command is refused, because the operator starts the runtime: remove it",
        ),
        refused(
            "args",
            "podTemplate.container.args is refused, because the operator starts the runtime: use engine.args "
            "for options of vLLM",
        ),
        variables_are_not_owned,
        mounts_hide_nothing,
    )

    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), KeyedBy("name")] | None = None
    """Environment variables, such as those of NCCL. The code of rewards sees them too: a Secret is safer as a
    file on a volume."""
    env_from: Annotated[tuple[EnvFromSource, ...], Field(max_length=16)] | None = None
    """ConfigMaps and Secrets whose keys become variables. A variable that a pod already has is not replaced.
    They must not have other variables that `env` refuses, such as HF_TOKEN; the operator cannot look into
    them."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=32), KeyedBy("mountPath")] | None = (
        None
    )
    """Where the volumes of podTemplate.spec.volumes are mounted."""
    image_pull_policy: PullPolicy | None = None
    """When a node pulls the image. Defaults to IfNotPresent."""
    security_context: _Object | None = None
    """Refused."""
    image: Annotated[str, Field(max_length=512)] | None = None
    """Refused: see spec.image."""
    resources: _Object | None = None
    """Refused: see resources beside podTemplate."""
    command: Annotated[tuple[Name, ...], Field(max_length=64)] | None = None
    """Refused."""
    args: Annotated[tuple[Name, ...], Field(max_length=64)] | None = None
    """Refused: see engine.args."""


@rule(
    cel="!has(self.container) || !has(self.container.volumeMounts) || self.container.volumeMounts.all(mount, "
    "has(self.spec) && has(self.spec.volumes) && "
    "self.spec.volumes.exists(volume, volume.name == mount.name))",
    sentence="podTemplate.container.volumeMounts names a volume that is not there: add it to "
    "podTemplate.spec.volumes",
    field=".container.volumeMounts",
)
def mounts_have_volumes(container: PodContainer | None, spec: PodSettings | None) -> bool:
    """The API server checks the mounts of a pod in the same way."""
    mounts = (container.volume_mounts if container else None) or ()
    volumes = (spec.volumes if spec else None) or ()
    return {mount.name for mount in mounts} <= {volume.name for volume in volumes}


@rule(
    cel=f"!has(self.sharedMemory) || {cel.is_quantity('self.sharedMemory')}",
    sentence="podTemplate.sharedMemory is not an amount that Kubernetes reads: write a number with a unit, "
    "such as 64Gi, and not 64GB or 1,5",
    field=".sharedMemory",
)
def shared_memory_is_a_quantity(shared_memory: str | int | None) -> bool:
    """The API server checks the volumes of a pod in the same way."""
    return shared_memory is None or is_quantity(shared_memory)


class PodTemplateSpec(ApiModel):
    """What is added to the pods of a role."""

    rules = (mounts_have_volumes, shared_memory_is_a_quantity)

    metadata: PodMetadata | None = None
    """Labels and annotations of the pods."""
    spec: PodSettings | None = None
    """Fields of a pod's spec: where it runs, and what it may mount."""
    container: PodContainer | None = None
    """Fields of the one container of a pod: variables and mounts."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, which NCCL uses between GPUs that do not reach each other directly. Only what is used
    counts as memory of the pod. Defaults to 1Gi, and 1Gi more for each GPU where there are several."""

    @property
    def has_claims(self) -> bool:
        """Whether the pods get devices by dynamic resource allocation."""
        return self.spec is not None and bool(self.spec.resource_claims)

    @property
    def has_host_network(self) -> bool:
        """Whether the pods use the network of their node."""
        return self.spec is not None and self.spec.host_network is True
