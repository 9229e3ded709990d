"""Made-up resources of the local node, of which pods ask for whole numbers, as of GPUs."""

import json

from grpo_demo.target import Target

SLOT = "grpo.dev/test-slot"


def set_slots(target: Target, number: int | None, *, resource: str = SLOT) -> None:
    """Give the cluster's only node so many slots; with None it has no such resource any more. Test files run
    side by side: each has a resource of its own."""
    value = {resource: None if number is None else str(number)}
    patch = json.dumps({"status": {"capacity": value, "allocatable": value}})
    target.run_kubectl("patch", "node", "node0", "--subresource=status", "--type=merge", "--patch", patch)
