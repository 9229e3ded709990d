"""`resources` of trainer and rollout pods."""

import re
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity, is_device_count, is_quantity, parse_quantity
from grpo_api.rule import rule

QuantityMap = Annotated[dict[str, Quantity], Field(max_length=16)]

RESOURCE_PATTERN = (
    r"^(cpu|memory|ephemeral-storage"
    r"|[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$"
)


@rule(
    cel=f"self.limits.all(name, name.matches('{RESOURCE_PATTERN}'))",
    sentence="limits has a name that is not a resource: use cpu, memory, ephemeral-storage or DOMAIN/NAME, "
    "such as nvidia.com/gpu",
    field=".limits",
)
def limits_are_resources(limits: QuantityMap) -> bool:
    """Limits name resources."""
    return all(re.fullmatch(RESOURCE_PATTERN, name) for name in limits)


@rule(
    cel=f"self.requests.all(name, name.matches('{RESOURCE_PATTERN}'))",
    sentence="requests has a name that is not a resource: use cpu, memory, ephemeral-storage or DOMAIN/NAME, "
    "such as nvidia.com/gpu",
    field=".requests",
)
def requests_are_resources(requests: QuantityMap) -> bool:
    """Requests name resources."""
    return all(re.fullmatch(RESOURCE_PATTERN, name) for name in requests)


@rule(
    cel=f"self.limits.all(name, {cel.is_quantity('self.limits[name]')})",
    sentence="limits has an amount that Kubernetes does not read: write a number, where needed with a unit, "
    "such as 4, 500m or 64Gi, and not 64GB or 1,5",
    field=".limits",
)
def limits_are_quantities(limits: QuantityMap) -> bool:
    """Limits are amounts."""
    return all(map(is_quantity, limits.values()))


@rule(
    cel=f"self.requests.all(name, {cel.is_quantity('self.requests[name]')})",
    sentence="requests has an amount that Kubernetes does not read: write a number, where needed with a "
    "unit, such as 4, 500m or 64Gi, and not 64GB or 1,5",
    field=".requests",
)
def requests_are_quantities(requests: QuantityMap) -> bool:
    """Requests are amounts."""
    return all(map(is_quantity, requests.values()))


def _are_comparable(requests: QuantityMap, limits: QuantityMap, name: str) -> bool:
    """Whether a resource has a request and a limit that another rule does not refuse."""
    return name in limits and is_quantity(requests[name]) and is_quantity(limits[name])


_BOTH = cel.can_compare("self.requests[name]", "self.limits[name]")


@rule(
    cel=f"self.limits.all(name, !name.contains('/') || !{cel.can_compare('self.limits[name]')} || "
    f"{cel.is_device_count('self.limits[name]')})",
    sentence="limits of devices such as nvidia.com/gpu must be whole numbers without a unit, up to 9999: "
    "write 1, not 1000m or 0.5",
    field=".limits",
)
def devices_are_whole(limits: QuantityMap) -> bool:
    """Devices cannot be divided."""
    return all(
        "/" not in name or not is_quantity(amount) or is_device_count(amount)
        for name, amount in limits.items()
    )


@rule(
    cel=f"self.requests.all(name, !(name in self.limits) || !{_BOTH} || "
    f"{cel.quantity('self.requests[name]')}.compareTo({cel.quantity('self.limits[name]')}) <= 0)",
    sentence="requests must not exceed limits of the same resource: lower the request or raise the limit",
    field=".requests",
)
def requests_are_within_limits(requests: QuantityMap, limits: QuantityMap) -> bool:
    """No pod asks for more than it may use."""
    return all(
        parse_quantity(amount) <= parse_quantity(limits[name])
        for name, amount in requests.items()
        if _are_comparable(requests, limits, name)
    )


@rule(
    cel="self.requests.all(name, !name.contains('/') || (name in self.limits && "
    f"(!{_BOTH} || "
    f"{cel.quantity('self.requests[name]')}.compareTo({cel.quantity('self.limits[name]')}) == 0)))",
    sentence="requests of devices such as nvidia.com/gpu must equal their limits: set only the limit",
    field=".requests",
)
def device_requests_are_limits(requests: QuantityMap, limits: QuantityMap) -> bool:
    """A device is either reserved or not there."""
    devices = [name for name in requests if "/" in name]
    return all(name in limits for name in devices) and all(
        parse_quantity(requests[name]) == parse_quantity(limits[name])
        for name in devices
        if _are_comparable(requests, limits, name)
    )


def is_gpu(name: str) -> bool:
    """Whether a resource is GPUs or slices of them (MIG)."""
    return name == cel.GPU or name.startswith(cel.MIG)


@rule(
    cel=f"self.limits.filter(name, {cel.is_gpu('name')}).size() <= 1",
    sentence="limits names GPUs of several kinds, and a process cannot choose which one it gets: keep "
    "nvidia.com/gpu, or one size of nvidia.com/mig-*",
    field=".limits",
)
def gpus_are_of_one_kind(limits: QuantityMap) -> bool:
    """A whole GPU and a slice are not interchangeable."""
    return sum(map(is_gpu, limits)) <= 1


@rule(
    cel=f"self.limits.all(name, !name.startsWith('{cel.MIG}') || string(self.limits[name]) in ['0', '1'])",
    sentence="limits of nvidia.com/mig-* must be 1, because each slice has a process of its own, and NCCL "
    "does not work between slices: set 1 and use more pods, or use nvidia.com/gpu",
    field=".limits",
)
def pods_have_one_slice(limits: QuantityMap) -> bool:
    """Ranks of one pod talk by NCCL."""
    return all(not name.startswith(cel.MIG) or str(amount) in ("0", "1") for name, amount in limits.items())


class ResourcesSpec(ApiModel):
    """Compute resources of one pod, as in a container."""

    rules = (
        limits_are_resources,
        requests_are_resources,
        limits_are_quantities,
        requests_are_quantities,
        devices_are_whole,
        requests_are_within_limits,
        device_requests_are_limits,
        gpus_are_of_one_kind,
        pods_have_one_slice,
    )

    limits: QuantityMap = Field(default={})
    """Upper bounds, such as cpu, memory and nvidia.com/gpu. A slice such as nvidia.com/mig-3g.40gb counts as
    a GPU; a pod may have one."""
    requests: QuantityMap = Field(default={})
    """What the scheduler reserves. Defaults to the limits."""

    @property
    def num_gpus(self) -> int:
        """NVIDIA GPUs, or slices, of one pod."""
        return sum(int(parse_quantity(amount)) for name, amount in self.limits.items() if is_gpu(name))
