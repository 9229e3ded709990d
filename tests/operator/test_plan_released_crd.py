"""The operator was upgraded and the CRD is that of 0.1.0: what is new in the status is dropped."""

from dataclasses import replace
from datetime import timedelta

import pytest
import yaml

from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.observe.observed import Observed
from grpo_operator.observe.served_schema import compare
from grpo_operator.plan.draft import Plan

from .fake_cluster import FakeCluster, report, spec, termination
from .test_served_schema import RELEASED_CRD

(VERSION,) = yaml.safe_load(RELEASED_CRD.read_text())["spec"]["versions"]
SCHEMA = compare(VERSION["schema"]["openAPIV3Schema"], release="9")


class CannotHoldBack(FakeCluster):
    """Its CRD cannot hold until when a job makes no pods."""

    def observed(self) -> Observed:
        can_hold_back = SCHEMA.can_hold("waitingForRoom", "heldBackUntil")
        return replace(super().observed(), crd_problem=SCHEMA.problem, can_hold_back=can_hold_back)


class ReleasedCrdCluster(CannotHoldBack):
    """Keeps of a status what the CRD of 0.1.0 has."""

    def step(self) -> Plan:
        plan = super().step()
        self.status = SCHEMA.fit(plan.status, shown={})
        return plan


def resumable() -> ReleasedCrdCluster:
    cluster = ReleasedCrdCluster(spec(checkpoint={"claimName": "runs"}))
    cluster.start()
    return cluster


def pause_after_eviction(cluster: FakeCluster) -> float:
    """Seconds between the eviction and the next attempt's pod."""
    began, attempt = cluster.now, cluster.status.attempt
    gone = ReasonMessage("Preempted", "something else needs the node")
    cluster.change(cluster.pod(f"trainer-a{attempt}-0"), disruption=gone, phase="Failed")
    while f"trainer-a{attempt + 1}-0" not in cluster.names("trainer"):
        plan = cluster.step()
        cluster.now += timedelta(seconds=plan.requeue_after or 0)
    pause = (cluster.now - began).total_seconds()
    cluster.run_all()
    cluster.settle()
    return pause


def test_disruptions_are_spaced_out_by_their_total():
    cluster = resumable()
    pauses = [pause_after_eviction(cluster) for _ in range(10)]
    assert pauses[:8] == [0, 5, 10, 20, 40, 80, 160, 320] and min(pauses[8:]) >= 600
    assert (cluster.status.disruptions, cluster.status.restarts) == (10, 0)


def test_the_condition_does_not_claim_to_know_which_attempts_made_no_progress():
    cluster = resumable()
    pause_after_eviction(cluster)
    cluster.progress = report(attempt=2, step=4, policy_version="2.4", checkpoint_step=4)
    cluster.settle()
    cluster.end(cluster.pod("trainer-a2-0"), termination(143))
    cluster.change(cluster.pod("trainer-a2-0"), disruption=ReasonMessage("Preempted", "x"))
    cluster.step()
    message = cluster.condition(ConditionType.RUNNING).message
    assert "2 disruptions" in message and "does not tell which of them" in message
    assert "CRD is older" in cluster.condition(ConditionType.READY).message


@pytest.mark.parametrize("kind", [CannotHoldBack, ReleasedCrdCluster])
def test_nodes_are_not_given_back_because_it_could_not_be_written_down(kind: type[FakeCluster]):
    cluster = kind(spec(trainer={"numNodes": 2}))
    cluster.has_room = False
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.unbind(cluster.pod("trainer-a1-1"), why=ReasonMessage("Unschedulable", "no GPU"))
    for _ in range(24 * 6):
        cluster.now += timedelta(minutes=10)
        cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert cluster.condition(ConditionType.RUNNING).reason == "Unschedulable"


def test_a_crd_that_has_the_rest_of_the_wait_and_not_its_end_is_no_reason_to_give_back():
    schema = compare(
        {"properties": {"spec": {}, "status": {"properties": {"waitingForRoom": {}}}}}, release="9"
    )
    assert not schema.can_hold("waitingForRoom", "heldBackUntil")
    assert compare(None, release="9").can_hold("waitingForRoom", "heldBackUntil")
