"""CEL expressions that several rules use."""

from grpo_api.quantity import DEVICE_COUNT_PATTERN

GPU = "nvidia.com/gpu"
"""Name of the resource for GPUs."""


def quantity(path: str) -> str:
    """CEL for the quantity at a path, which `compareTo` takes."""
    return f"quantity(string({path}))"


def is_device_count(path: str) -> str:
    """CEL for whether the quantity at a path is a whole number without a unit."""
    return f"string({path}).matches('{DEVICE_COUNT_PATTERN}')"


def num_gpus(resources: str) -> str:
    """CEL for the number of GPUs of one pod. It is 0 for a quantity that is not a whole number, which another
    rule refuses."""
    gpus = f"{resources}.limits['{GPU}']"
    return f"('{GPU}' in {resources}.limits && {is_device_count(gpus)} ? int(string({gpus})) : 0)"


HAS_ROLLOUT_RESOURCES = "(has(self.rollout) && has(self.rollout.resources))"
"""Whether rollout has resources: the scale subresource writes replicas without the defaults of the others."""
PROCESSES_PER_NODE = (
    "(has(self.trainer.processesPerNode) ? self.trainer.processesPerNode : "
    f"{num_gpus('self.trainer.resources')} > 0 ? {num_gpus('self.trainer.resources')} : 1)"
)
"""Training processes of a node, in rules of the whole spec."""
