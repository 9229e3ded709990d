"""Jobs that have some of the nodes they need, for the tests of what they do with them."""

from datetime import timedelta

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import Phase
from grpo_operator.settings import HOLD_SECONDS

from .fake_cluster import FakeCluster, report, spec

NO_GPU = ReasonMessage("Unschedulable", "no node has enough nvidia.com/gpu free: lower trainer.resources")


def half_bound(job_spec: GRPOJobSpec | None = None, *, has_node: bool = True) -> FakeCluster:
    """A gang of which only pod 0 found a node, or not even that one yet."""
    cluster = FakeCluster(job_spec or spec(trainer={"numNodes": 2}))
    cluster.has_room = False
    cluster.settle()
    if has_node:
        cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.unbind(cluster.pod("trainer-a1-1"), why=NO_GPU)
    cluster.settle()
    return cluster


def without_engines() -> FakeCluster:
    """A job whose trainer pod runs, and whose engines find no node."""
    cluster = FakeCluster()
    cluster.step()
    cluster.has_room = False
    cluster.settle()
    for name in ("rollout-0-i0", "rollout-1-i0"):
        cluster.unbind(cluster.pod(name), why=NO_GPU)
    cluster.change(cluster.pod("trainer-a1-0"), phase="Running", is_ready=True)
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0, policy_version="1.0")
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    return cluster


def give_back(cluster: FakeCluster) -> None:
    """Wait until the job gives its nodes back."""
    for _ in range(20):
        if cluster.status.given_back:
            return
        cluster.now += timedelta(seconds=cluster.plan().requeue_after or HOLD_SECONDS)
        cluster.settle()
    raise AssertionError("nothing was given back")
