"""The choice of the mode, and a job whose engines live in the trainer's processes."""

from typing import Any

import pytest

from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import ConditionType, Phase

from .fake_cluster import FakeCluster, report, spec, termination


def colocated(**changes: Any) -> GRPOJobSpec:
    data = spec().to_object()
    del data["rollout"]
    return GRPOJobSpec.from_object(data | changes)


def in_process(**changes: Any) -> dict[str, Any]:
    return {"engines": EngineCounts(desired=1, known=1, current=1), **changes}


@pytest.mark.parametrize(
    ("job_spec", "mode", "reason"),
    [
        (spec(), "Disaggregated", "spec.mode is Auto and spec.rollout is set"),
        (colocated(), "Colocated", "spec.mode is Auto and spec.rollout is not set"),
        (spec(mode="Disaggregated"), "Disaggregated", "spec.mode is Disaggregated"),
        (colocated(mode="Colocated"), "Colocated", "spec.mode is Colocated"),
    ],
)
def test_the_mode_and_its_reason_are_written_down_at_the_start(job_spec: GRPOJobSpec, mode: str, reason: str):
    cluster = FakeCluster(job_spec)
    cluster.step()
    assert (cluster.status.mode, cluster.status.mode_reason) == (mode, reason)


def test_a_job_keeps_its_mode_when_the_spec_no_longer_says_so():
    cluster = FakeCluster(colocated()).start()
    cluster.stored_spec = colocated(mode="Colocated")
    cluster.spec, cluster.generation = spec(), 2  # past the API server, which refuses it
    cluster.settle()
    assert (cluster.status.mode, cluster.names("rollout")) == ("Colocated", [])
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert (cluster.status.mode, cluster.names("rollout")) == ("Colocated", [])


def test_colocated_engines_get_no_pods_no_service_and_no_tokens():
    cluster = FakeCluster(colocated(trainer={"numNodes": 2})).start()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert cluster.names("rollout") == []
    assert (len(cluster.services), cluster.num_secrets) == (1, 0)
    for pod in cluster.bodies.values():
        assert "tokens" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_pods_with_ray_get_the_tokens_that_guard_it_and_no_more():
    cluster = FakeCluster(colocated(trainer={"numNodes": 2}, colocated={"executor": "Ray"})).start()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a1-1"]
    assert (len(cluster.services), cluster.num_secrets) == (1, 1)
    for pod in cluster.bodies.values():
        assert "tokens" in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_counts_of_a_colocated_job_say_where_its_engines_are():
    cluster = FakeCluster(colocated()).start()
    rollout = cluster.status.rollout
    assert (rollout.summary, rollout.desired, rollout.replicas, rollout.selector) == ("in trainer", 0, 0, "")
    assert (cluster.status.phase, cluster.status.trainer.summary) == (Phase.RUNNING, "1/1")


def test_rollout_is_ready_once_the_trainer_reports_its_engines_current():
    cluster = FakeCluster(colocated())
    cluster.step()
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "TrainerNotRunning"
    cluster.start()
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "EnginesStarting"
    cluster.progress = report(**in_process())
    cluster.settle()
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert (ready.status, ready.reason) == ("True", "InProcess")
    cluster.progress = report(heartbeat=9, **in_process(engines=EngineCounts(desired=1, known=1, current=0)))
    cluster.settle()  # behind for a moment, between an optimizer step and the next sync
    assert cluster.condition(ConditionType.ROLLOUT_READY) == ready


def test_rollout_is_not_ready_again_before_the_next_attempts_engines_are():
    cluster = FakeCluster(colocated()).start()
    cluster.progress = report(**in_process())
    cluster.settle()
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "TrainerNotRunning"
    cluster.run_all()
    cluster.settle()
    assert cluster.condition(ConditionType.ROLLOUT_READY).reason == "EnginesStarting"


def test_a_colocated_job_completes():
    cluster = FakeCluster(colocated()).start()
    cluster.progress = report(**in_process(step=10, state=TrainerState.DONE))
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    assert (cluster.status.phase, cluster.status.rollout.summary) == (Phase.SUCCEEDED, "in trainer")
