"""CEL expressions that several rules use."""

import json
from collections.abc import Sequence

from grpo_api.quantity import DEVICE_COUNT_PATTERN, QUANTITY_PATTERN

GPU = "nvidia.com/gpu"
"""Name of the resource for whole GPUs."""
MIG = "nvidia.com/mig-"
"""How the names of resources for slices of GPUs begin, such as nvidia.com/mig-3g.40gb. Which sizes follow
depends on the model of the GPU."""


def list_of(texts: Sequence[str]) -> str:
    """CEL for a list of texts."""
    return f"[{', '.join(map(json.dumps, texts))}]"


def quantity(path: str) -> str:
    """CEL for the quantity at a path, which `compareTo` takes."""
    return f"quantity(string({path}))"


def is_quantity(path: str) -> str:
    """CEL for whether the value at a path is a quantity as the models read it."""
    return f"string({path}).matches(r'{QUANTITY_PATTERN}')"


def can_compare(*paths: str) -> str:
    """CEL for whether `quantity` takes the values at these paths. A rule that compares leaves those that it
    does not take to the rule that refuses them."""
    return "(" + " && ".join(f"isQuantity(string({path}))" for path in paths) + ")"


def is_device_count(path: str) -> str:
    """CEL for whether the quantity at a path is a whole number without a unit."""
    return f"string({path}).matches('{DEVICE_COUNT_PATTERN}')"


def is_gpu(name: str) -> str:
    """CEL for whether a resource is GPUs or slices of them."""
    return f"({name} == '{GPU}' || {name}.startsWith('{MIG}'))"


def num_gpus(resources: str) -> str:
    """CEL for the number of GPUs, or of slices, of one pod. It is 0 for a quantity that is not a whole
    number, which another rule refuses, as another refuses two kinds of GPUs."""
    limits = f"{resources}.limits"
    is_counted = f"{is_gpu('name')} && {is_device_count(f'{limits}[name]')}"
    counted = f"{limits}.map(name, {is_counted}, int(string({limits}[name])))"
    return f"({limits}.exists(name, {is_counted}) ? {counted}[0] : 0)"


def has_claims(pod: str) -> str:
    """CEL for whether the pods of a role get devices by dynamic resource allocation."""
    template = f"{pod}.podTemplate"
    return (
        f"(has({template}) && has({template}.spec) && has({template}.spec.resourceClaims) "
        f"&& {template}.spec.resourceClaims.size() > 0)"
    )


def has_host_network(pod: str) -> str:
    """CEL for whether the pods of a role use the network of their node."""
    template = f"{pod}.podTemplate"
    return (
        f"(has({template}) && has({template}.spec) && has({template}.spec.hostNetwork) "
        f"&& {template}.spec.hostNetwork)"
    )


def has_gpus(pod: str) -> str:
    """CEL for whether the pods of a role have GPUs."""
    return f"({num_gpus(f'{pod}.resources')} > 0 || {has_claims(pod)})"


HAS_ROLLOUT_RESOURCES = "(has(self.rollout) && has(self.rollout.resources))"
"""Whether rollout has resources: the scale subresource writes replicas without the defaults of the others."""
PROCESSES_PER_NODE = (
    "(has(self.trainer.processesPerNode) ? self.trainer.processesPerNode : "
    f"{num_gpus('self.trainer.resources')} > 0 ? {num_gpus('self.trainer.resources')} : 1)"
)
"""Training processes of a node, in rules of the whole spec."""
