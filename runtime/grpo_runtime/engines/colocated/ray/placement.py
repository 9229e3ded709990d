"""Which bundle of the placement group is whose, and what lies in it. Pure.

One group for the job with one bundle for each rank, whose index is the number of the rank. A resource of each
node that bears the number of its pod keeps a bundle in the pod of its rank: the engine shares memory with it.
"""

from dataclasses import dataclass

NAMESPACE = "grpo"
GROUP_NAME = "ranks"

_NODE_FRACTION = 0.001
"""How much of a node's own resource a bundle takes: any number of bundles must fit."""
_CPUS_OF_BUNDLE = 1.0
ENGINE_GPUS = 0.5
"""Of the GPU of a bundle, what is the engine's; the rank has the rest. Ray only counts: what each takes of
the memory is decided as for every other engine in its own process."""

Resources = dict[str, float]


@dataclass(frozen=True)
class RayShape:
    """The ranks of a job as Ray sees them. On GPUs each has one."""

    num_pods: int
    ranks_per_pod: int
    has_gpus: bool


def node_resource(pod: int) -> str:
    """The resource that only the node of this pod has."""
    return f"trainer-pod-{pod}"


def bundles(shape: RayShape) -> list[Resources]:
    """The bundles of the placement group, by rank."""
    ranks = range(shape.num_pods * shape.ranks_per_pod)
    gpus: Resources = {"GPU": 1.0} if shape.has_gpus else {}
    return [
        {"CPU": _CPUS_OF_BUNDLE, **gpus, node_resource(rank // shape.ranks_per_pod): _NODE_FRACTION}
        for rank in ranks
    ]


def actor_gpus(shape: RayShape) -> float:
    """What an engine takes of the GPU in its bundle."""
    return ENGINE_GPUS if shape.has_gpus else 0.0
