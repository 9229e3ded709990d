"""The NetworkPolicy of a job: what it lets through, and when it is made."""

from collections.abc import Sequence
from typing import Any

import pytest

from grpo_api.contract.endpoints import TRAINER_PORT
from grpo_api.contract.labels import JOB_UID
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.children.child import Child
from grpo_operator.cluster.kinds import NETWORK_POLICIES, PODS, KubeObject
from grpo_operator.observe.observed import Observed
from grpo_operator.plan import make_plan

from .fake_cluster import IMAGE, NOW, UID, FakeCluster, job_view, spec


def observed(**more: Any) -> Observed:
    job = job_view()
    return Observed(job=job, **more)


PROMETHEUS = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}


def planned(
    seen: Observed, *, is_wanted: bool = True, reports_from: Sequence[KubeObject] | None = None
) -> list[Child]:
    plan = make_plan(
        seen, runtime_image=IMAGE, now=NOW, has_network_policies=is_wanted, reports_from=reports_from
    )
    return [child for child in plan.create if child.kind == NETWORK_POLICIES]


def test_a_jobs_pods_reach_each_other_on_every_port_and_those_who_may_the_trainers_reports():
    (policy,) = planned(observed(), reports_from=[PROMETHEUS])
    members = {"podSelector": {"matchLabels": {JOB_UID: UID}}}
    port = {"protocol": "TCP", "port": TRAINER_PORT}
    assert policy.body["spec"] == members | {
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [members]}, {"from": [PROMETHEUS], "ports": [port]}],
    }


def test_the_policy_of_a_job_that_an_older_operator_started_is_closed_by_an_upgrade():
    (opened,) = planned(observed())
    (correction,) = planned(observed(network_policies={opened.name: opened.body}), reports_from=[PROMETHEUS])
    assert correction.is_correction
    assert correction.body["spec"]["ingress"][1]["from"] == [PROMETHEUS]


def test_an_operator_that_is_told_no_readers_leaves_the_trainers_reports_open():
    (policy,) = planned(observed())
    members = {"podSelector": {"matchLabels": {JOB_UID: UID}}}
    assert policy.body["spec"] == members | {
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [members]}, {"ports": [{"protocol": "TCP", "port": TRAINER_PORT}]}],
    }


def test_the_policy_selects_the_pods_that_are_planned_with_it():
    cluster = FakeCluster()
    created = (*cluster.step().create, *cluster.step().create)
    (policy,) = (child.body for child in created if child.kind == NETWORK_POLICIES)
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    pods = [child.body for child in created if child.kind == PODS]
    assert len(pods) == 3
    assert all(selected <= pod["metadata"]["labels"].items() for pod in pods)


def test_one_that_is_right_is_left_alone_and_one_that_was_changed_is_put_right():
    (policy,) = planned(observed())
    right = {policy.name: policy.body}
    assert planned(observed(network_policies=right)) == []
    opened = {policy.name: policy.body | {"spec": policy.body["spec"] | {"ingress": [{}]}}}
    (correction,) = planned(observed(network_policies=opened))
    assert correction.is_correction and correction.body == policy.body


@pytest.mark.parametrize("field", ["podSelector", "policyTypes", "ingress"])
def test_each_part_of_ours_is_put_right_when_it_is_lost(field: str):
    (policy,) = planned(observed())
    spec_left = {key: value for key, value in policy.body["spec"].items() if key != field}
    (correction,) = planned(observed(network_policies={policy.name: policy.body | {"spec": spec_left}}))
    assert correction.is_correction


def test_what_an_admin_adds_to_it_is_left_alone():
    (policy,) = planned(observed())
    added = {policy.name: policy.body | {"spec": policy.body["spec"] | {"egress": [{"to": []}]}}}
    assert planned(observed(network_policies=added)) == []


def test_an_operator_started_without_network_policies_makes_none():
    assert planned(observed(), is_wanted=False) == []


def of_two_pods() -> FakeCluster:
    """A job with engines of two pods each."""
    return FakeCluster(spec(engine={"tensorParallelSize": 2}, rollout={"replicas": 1, "nodesPerReplica": 2}))


def test_a_job_with_engines_of_several_pods_waits_where_no_policy_is_made_and_says_so():
    cluster = of_two_pods()
    cluster.has_network_policies = False
    plan = cluster.settle()
    assert (cluster.pods, plan.status.attempt) == ({}, 0)
    for kind in (ConditionType.READY, ConditionType.RUNNING):
        found = cluster.condition(kind)
        assert (found.status, found.reason) == ("False", "NetworkPoliciesOff")
        assert "rollout.nodesPerReplica (2)" in found.message and "networkPolicies.jobs=true" in found.message
    cluster.has_network_policies = True
    assert cluster.start().names("rollout") == ["rollout-0-i0", "rollout-0-i0-1"]
    assert cluster.network_policies


def test_a_job_on_ray_waits_where_no_policy_is_made_and_says_so():
    cluster = FakeCluster(spec(rollout=None, colocated={"executor": "Ray"}))
    cluster.has_network_policies = False
    plan = cluster.settle()
    assert (cluster.pods, plan.status.attempt) == ({}, 0)
    found = cluster.condition(ConditionType.READY)
    assert (found.status, found.reason) == ("False", "NetworkPoliciesOff")
    assert "colocated.executor (Ray)" in found.message and "networkPolicies.jobs=true" in found.message
    cluster.has_network_policies = True
    cluster.start()
    assert cluster.network_policies


def test_a_job_that_has_its_policy_goes_on_under_an_operator_that_makes_none():
    cluster = of_two_pods().start()
    cluster.has_network_policies = False
    cluster.settle()
    assert cluster.status.phase == Phase.RUNNING
    assert cluster.condition(ConditionType.RUNNING).status == "True"
