"""What keeps a job from giving back the nodes that it has."""

from datetime import timedelta

import pytest

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import Phase
from grpo_operator.settings import HOLD_SECONDS

from .fake_cluster import NOW, FakeCluster, report, termination
from .partly_bound import NO_GPU, half_bound, without_engines


def test_a_single_trainer_pod_without_a_node_just_waits():
    cluster = FakeCluster()
    cluster.has_room = False
    cluster.settle()
    cluster.unbind(cluster.pod("trainer-a1-0"), why=NO_GPU)
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0"]
    assert (cluster.status.given_back, cluster.names("rollout")) == (0, [])


def test_a_trainer_that_has_one_engine_keeps_everything():
    cluster = without_engines()
    cluster.bind(cluster.pod("rollout-1-i0"))
    cluster.now += timedelta(days=1)
    cluster.step()
    assert (cluster.status.given_back, cluster.plan().delete) == (0, ())


@pytest.mark.parametrize("engines", [("rollout-0-i0",), ("rollout-0-i0", "rollout-1-i0")])
def test_a_job_that_makes_steps_never_gives_anything_back(engines: tuple[str, ...]):
    cluster = FakeCluster().start()
    cluster.progress = report(step=4)
    cluster.settle()
    cluster.has_room = False
    cluster.vanish(*map(cluster.pod, engines))
    for hours in range(10):
        cluster.now = NOW + timedelta(hours=hours)
        cluster.settle()
        assert (cluster.status.given_back, cluster.names("trainer")) == (0, ["trainer-a1-0"])


def test_a_trainer_that_does_not_answer_may_be_training_and_keeps_its_nodes():
    cluster = without_engines()
    cluster.report_problem = ReasonMessage("ProgressUnreachable", "the trainer has not answered")
    cluster.now += timedelta(days=1)
    cluster.settle()
    assert cluster.status.given_back == 0
    cluster.progress, cluster.report_problem = None, None  # the operator has restarted
    cluster.settle()
    assert cluster.status.given_back == 0


def test_a_gang_that_failed_is_not_given_back_but_ended():
    cluster = half_bound()
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    cluster.end(cluster.pod("trainer-a1-0"), termination(40, "the spec is wrong"))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.given_back) == (Phase.FAILED, 0)


def test_a_missing_pod_is_tried_before_anything_is_given_back():
    cluster = half_bound()
    cluster.vanish(cluster.pod("trainer-a1-1"))
    cluster.status = cluster.status.model_copy(update={"phase": Phase.PENDING})
    cluster.now = NOW + timedelta(seconds=2 * HOLD_SECONDS)
    plan = cluster.plan()
    assert (plan.status.given_back, plan.delete) == (0, ())
    assert plan.create[-1].name == cluster.pod("trainer-a1-1")
