"""Parts of a pod, as the Kubernetes API defines them.

Written by `generate.py`: change that, then run it. The documentation of Kubernetes describes the fields.
"""

from typing import Annotated, TypeVar

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity

T = TypeVar("T")
Text = Annotated[str, Field(max_length=4096)]
Number = Annotated[int, Field(ge=0, le=2_147_483_647)]
Items = Annotated[tuple[T, ...], Field(max_length=64)]
Map = Annotated[dict[str, Text], Field(max_length=64)]


class NodeSelectorRequirement(ApiModel):
    key: Text
    operator: Text
    values: Items[Text] | None = None


class NodeSelectorTerm(ApiModel):
    match_expressions: Items[NodeSelectorRequirement] | None = None
    match_fields: Items[NodeSelectorRequirement] | None = None


class PreferredSchedulingTerm(ApiModel):
    preference: NodeSelectorTerm
    weight: Number


class NodeSelector(ApiModel):
    node_selector_terms: Items[NodeSelectorTerm]


class NodeAffinity(ApiModel):
    preferred_during_scheduling_ignored_during_execution: Items[PreferredSchedulingTerm] | None = None
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class LabelSelectorRequirement(ApiModel):
    key: Text
    operator: Text
    values: Items[Text] | None = None


class LabelSelector(ApiModel):
    match_expressions: Items[LabelSelectorRequirement] | None = None
    match_labels: Map | None = None


class PodAffinityTerm(ApiModel):
    label_selector: LabelSelector | None = None
    match_label_keys: Items[Text] | None = None
    mismatch_label_keys: Items[Text] | None = None
    namespaces: Items[Text] | None = None
    topology_key: Text


class WeightedPodAffinityTerm(ApiModel):
    pod_affinity_term: PodAffinityTerm
    weight: Number


class PodAffinity(ApiModel):
    preferred_during_scheduling_ignored_during_execution: Items[WeightedPodAffinityTerm] | None = None
    required_during_scheduling_ignored_during_execution: Items[PodAffinityTerm] | None = None


class PodAntiAffinity(ApiModel):
    preferred_during_scheduling_ignored_during_execution: Items[WeightedPodAffinityTerm] | None = None
    required_during_scheduling_ignored_during_execution: Items[PodAffinityTerm] | None = None


class Affinity(ApiModel):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class KeyToPath(ApiModel):
    key: Text
    mode: Number | None = None
    path: Text


class ConfigMapVolumeSource(ApiModel):
    default_mode: Number | None = None
    items: Items[KeyToPath] | None = None
    name: Text | None = None
    optional: bool | None = None


class LocalObjectReference(ApiModel):
    name: Text | None = None


class CSIVolumeSource(ApiModel):
    driver: Text
    fs_type: Text | None = None
    node_publish_secret_ref: LocalObjectReference | None = None
    read_only: bool | None = None
    volume_attributes: Map | None = None


class EmptyDirVolumeSource(ApiModel):
    medium: Text | None = None
    size_limit: Quantity | None = None


class ConfigMapEnvSource(ApiModel):
    name: Text | None = None
    optional: bool | None = None


class SecretEnvSource(ApiModel):
    name: Text | None = None
    optional: bool | None = None


class EnvFromSource(ApiModel):
    config_map_ref: ConfigMapEnvSource | None = None
    prefix: Text | None = None
    secret_ref: SecretEnvSource | None = None


class ConfigMapKeySelector(ApiModel):
    key: Text
    name: Text | None = None
    optional: bool | None = None


class ObjectFieldSelector(ApiModel):
    api_version: Text | None = None
    field_path: Text


class ResourceFieldSelector(ApiModel):
    container_name: Text | None = None
    divisor: Quantity | None = None
    resource: Text


class SecretKeySelector(ApiModel):
    key: Text
    name: Text | None = None
    optional: bool | None = None


class EnvVarSource(ApiModel):
    config_map_key_ref: ConfigMapKeySelector | None = None
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    secret_key_ref: SecretKeySelector | None = None


class EnvVar(ApiModel):
    name: Text
    value: Text | None = None
    value_from: EnvVarSource | None = None


class PersistentVolumeClaimVolumeSource(ApiModel):
    claim_name: Text
    read_only: bool | None = None


class PodResourceClaim(ApiModel):
    name: Text
    resource_claim_name: Text | None = None
    resource_claim_template_name: Text | None = None


class SecretVolumeSource(ApiModel):
    default_mode: Number | None = None
    items: Items[KeyToPath] | None = None
    optional: bool | None = None
    secret_name: Text | None = None


class Toleration(ApiModel):
    effect: Text | None = None
    key: Text | None = None
    operator: Text | None = None
    toleration_seconds: Number | None = None
    value: Text | None = None


class TopologySpreadConstraint(ApiModel):
    label_selector: LabelSelector | None = None
    match_label_keys: Items[Text] | None = None
    max_skew: Number
    min_domains: Number | None = None
    node_affinity_policy: Text | None = None
    node_taints_policy: Text | None = None
    topology_key: Text
    when_unsatisfiable: Text


class VolumeMount(ApiModel):
    mount_path: Text
    name: Text
    read_only: bool | None = None
    sub_path: Text | None = None
