"""The current attempt's trainer pods, and whether all of them were once there."""

from grpo_api.v1alpha1.status import GRPOJobStatus, Phase
from grpo_operator.children.run import Run
from grpo_operator.observed import Observed, PodView


def current_gang(observed: Observed, *, attempt: int) -> dict[int, PodView]:
    """Trainer pods of an attempt by node index."""
    return {pod.position[1]: pod for pod in observed.trainers if pod.position[0] == attempt}


def missing_indices(observed: Observed, run: Run, *, attempt: int) -> list[int]:
    """Node indices without a pod in this attempt."""
    gang = current_gang(observed, attempt=attempt)
    return [index for index in range(run.spec.trainer.num_nodes) if index not in gang]


def was_complete(status: GRPOJobStatus) -> bool:
    """Whether every trainer pod of the attempt in status has been seen.

    This is what tells a pod that is still to be made from one that was taken away, also after a restart
    of the operator: the phase leaves Pending and Restarting only when the whole gang exists.
    """
    return status.phase in {Phase.STARTING, Phase.RUNNING}
