"""What jobs may ask for beyond what every pod of a job has, and what in a spec exceeds that. Pure.

A user who may create GRPOJobs need not be allowed to create pods. A ServiceAccount, the network of a node, a
priority, an annotation that a cloud or a network plugin obeys, a label that the NetworkPolicies of others
select, or an argument of vLLM that opens a socket or loads code may mean more than a pod alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo_api.v1alpha1.spec import Gang, GRPOJobSpec
from grpo_api.v1alpha1.spec.pod_template import PodSettings, PodTemplateSpec

ANY = "*"
"""Allows everything in a list of what is allowed."""
QUEUES = (
    *("kueue.x-k8s.io/", "scheduling.x-k8s.io/", "pod-group.scheduling.sigs.k8s.io", "yunikorn.apache.org/"),
    *("scheduling.volcano.sh/", "volcano.sh/", "kai.scheduler/", "runai/"),
)
"""Labels and annotations by which a queue or a scheduler of gangs knows a pod."""
ANNOTATIONS = (*QUEUES, "cluster-autoscaler.kubernetes.io/", "karpenter.sh/do-not-disrupt", "prometheus.io/")
"""Annotations that give a pod no right: others read from them how to scrape it, and when to leave it."""
RUNTIME_CLASSES = ("nvidia",)
ENGINE_ARGUMENTS = (
    *("async-scheduling", "block-size", "enable-chunked-prefill", "enable-prefix-caching"),
    *("long-prefill-token-threshold", "max-logprobs", "max-num-batched-tokens", "max-num-seqs"),
    *("num-gpu-blocks-override", "optimization-level", "performance-mode", "prefix-caching-hash-algo"),
    *("scheduling-policy", "watermark", "all2all-backend", "attention-backend", "cudagraph-capture-sizes"),
    *("disable-cascade-attn", "disable-custom-all-reduce", "disable-hybrid-kv-cache-manager"),
    *("disable-sliding-window", "enable-eplb", "enable-flashinfer-autotune", "enforce-eager"),
    *("expert-placement-strategy", "gdn-prefill-backend", "kda-decode-backend", "kda-prefill-backend"),
    *("linear-backend", "mamba-backend", "mamba-block-size", "mamba-cache-dtype", "mamba-cache-mode"),
    *("mamba-ssm-cache-dtype", "max-cudagraph-capture-size", "moe-backend", "use-fp64-gumbel"),
    *("allow-deprecated-quantization", "cpu-offload-gb", "kv-cache-dtype", "quantization"),
    *("language-model-only", "limit-mm-per-prompt", "mm-encoder-attn-backend", "mm-encoder-tp-mode"),
    *("model-impl", "skip-mm-profiling", "tokenizer-mode", "enable-auto-tool-choice", "reasoning-parser"),
    *("tool-call-parser", "disable-log-stats", "log-level", "max-log-len", "uvicorn-log-level"),
)
"""Arguments of vLLM that are numbers, names of what it has itself, and switches between them. None opens a
socket, reads a file or loads code."""


@dataclass(frozen=True)
class Permissions:
    """What jobs may ask for. A name that ends with a slash allows all that begin with it."""

    service_accounts: tuple[str, ...] = ()
    """ServiceAccounts that pods may have."""
    has_host_network: bool = False
    """Whether pods may use the network of their node."""
    annotations: tuple[str, ...] = ()
    """Annotations of pods besides ANNOTATIONS."""
    labels: tuple[str, ...] = ()
    """Labels of pods besides QUEUES."""
    priority_classes: tuple[str, ...] = ()
    """PriorityClasses of pods."""
    runtime_classes: tuple[str, ...] = ()
    """RuntimeClasses of pods besides RUNTIME_CLASSES."""
    engine_arguments: tuple[str, ...] = ()
    """Arguments of vLLM besides ENGINE_ARGUMENTS, without their dashes."""
    gangs: tuple[str, ...] = ()
    """Values of `scheduling.gang`, whose PodGroups the operator then makes."""

    def allows_gang(self, gang: Gang) -> bool:
        """Whether jobs may name this gang scheduler."""
        return _is_in(gang, *self.gangs)


NO_PERMISSIONS = Permissions()


def not_permitted(spec: GRPOJobSpec, permissions: Permissions) -> list[str]:
    """What a job asks for without permission, each with who can give it."""
    found = list(_of_engine(spec.engine.args, permissions))
    gang = spec.scheduling.gang if spec.scheduling else None
    if gang is not None and not permissions.allows_gang(gang):
        found.append(_asks(f"scheduling.gang ({gang.value})", "gangs", "gang", gang.value))
    for role, pods in (("trainer", spec.trainer), ("rollout", spec.rollout)):
        if pods is not None and pods.pod_template is not None:
            found += _of_template(f"{role}.podTemplate", pods.pod_template, permissions)
    return found


def _of_engine(arguments: Iterable[str], permissions: Permissions) -> Iterator[str]:
    for argument in arguments:
        # abbreviations are other names: which one is meant is vLLM's to say
        name = argument.removeprefix("--").partition("=")[0]
        is_harmless = _is_in(name.removeprefix("no-"), *ENGINE_ARGUMENTS)
        if not (is_harmless or _is_in(name, *permissions.engine_arguments)):
            yield _asks(f"engine.args (--{name})", "engineArgs", "engine-argument", name)


def _of_template(field: str, template: PodTemplateSpec, permissions: Permissions) -> Iterator[str]:
    if template.metadata is not None:
        for name in template.metadata.annotations or {}:
            if not _is_in(name, *ANNOTATIONS, *permissions.annotations):
                yield _asks(
                    f"{field}.metadata.annotations ({name})", "podTemplates.annotations", "annotation", name
                )
        for name in template.metadata.labels or {}:
            if not _is_in(name, *QUEUES, *permissions.labels):
                yield _asks(f"{field}.metadata.labels ({name})", "podTemplates.labels", "label", name)
    if template.spec is not None:
        yield from _of_settings(f"{field}.spec", template.spec, permissions)


def _of_settings(field: str, settings: PodSettings, permissions: Permissions) -> Iterator[str]:
    account, priority, runtime = (
        settings.service_account_name,
        settings.priority_class_name,
        settings.runtime_class_name,
    )
    if account is not None and not _is_in(account, *permissions.service_accounts):
        what, values = f"{field}.serviceAccountName ({account})", "podTemplates.serviceAccounts"
        yield _asks(what, values, "service-account", account)
    if priority is not None and not _is_in(priority, *permissions.priority_classes):
        what, values = f"{field}.priorityClassName ({priority})", "podTemplates.priorityClasses"
        yield _asks(what, values, "priority-class", priority)
    if runtime is not None and not _is_in(runtime, *RUNTIME_CLASSES, *permissions.runtime_classes):
        what, values = f"{field}.runtimeClassName ({runtime})", "podTemplates.runtimeClasses"
        yield _asks(what, values, "runtime-class", runtime)
    if settings.host_network and not permissions.has_host_network:
        yield (
            f"{field}.hostNetwork is not allowed by this operator: its administrator can set "
            "podTemplates.hostNetwork=true of the chart (--allow-host-network=true)"
        )
    if _looks_into_other_namespaces(settings):
        yield (
            f"{field}.affinity speaks of pods of other namespaces, which could keep those from their nodes: "
            "remove namespaces and namespaceSelector"
        )


def _looks_into_other_namespaces(settings: PodSettings) -> bool:
    affinity = settings.to_object().get("affinity", {})
    terms = [
        term.get("podAffinityTerm", term)
        for kind in ("podAffinity", "podAntiAffinity")
        for found in affinity.get(kind, {}).values()
        for term in found
    ]
    return any("namespaces" in term or "namespaceSelector" in term for term in terms)


def _asks(what: str, in_chart: str, flag: str, value: str) -> str:
    return (
        f"{what} is not one that this operator allows: its administrator can add it to {in_chart} of the "
        f"chart (--allow-{flag}={value})"
    )


def _is_in(name: str, *allowed: str) -> bool:
    return any(entry in (name, ANY) or (entry.endswith("/") and name.startswith(entry)) for entry in allowed)
