"""Engines of several rollout pods: they come, are counted and go as one."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.contract import labels
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import EngineCounts, TrainerState
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.plan import Plan

from .fake_cluster import FakeCluster, report, spec, termination, termination_message


def a_cluster(*, replicas: int = 2) -> FakeCluster:
    """A job with engines of two pods each."""
    return FakeCluster(
        spec(engine={"tensorParallelSize": 2}, rollout={"replicas": replicas, "nodesPerReplica": 2})
    )


def started(*, replicas: int = 2) -> FakeCluster:
    """The same, a while after its pods have become ready."""
    cluster = a_cluster(replicas=replicas).start()
    cluster.now += timedelta(minutes=10)
    return cluster


ALL = ["rollout-0-i0", "rollout-0-i0-1", "rollout-1-i0", "rollout-1-i0-1"]
WITHOUT_THE_FIRST = ["rollout-1-i0", "rollout-1-i0-1"]
REPLACED = ["rollout-0-i1", "rollout-0-i1-1", *WITHOUT_THE_FIRST]


def test_an_engine_has_as_many_pods_as_the_spec_says_and_none_restarts_alone():
    cluster = started()
    assert cluster.names("rollout") == ALL
    leader, other = (cluster.bodies[cluster.pod(name)] for name in ALL[:2])
    assert [pod["spec"]["restartPolicy"] for pod in (leader, other)] == ["Never", "Never"]
    assert [pod["metadata"]["labels"][labels.REPLICA] for pod in (leader, other)] == ["0", "0"]
    assert [pod["metadata"]["labels"][labels.NODE_INDEX] for pod in (leader, other)] == ["0", "1"]


def test_the_pods_of_an_engine_meet_at_the_first_and_only_that_one_is_probed():
    cluster = started()
    leader, other = (cluster.bodies[cluster.pod(name)]["spec"] for name in ALL[2:])
    environments = [
        {each["name"]: each["value"] for each in pod["containers"][0]["env"]} for pod in (leader, other)
    ]
    assert leader["subdomain"] == f"{cluster.base}-rollout"
    for index, environment in enumerate(environments):
        assert environment[Env.MASTER_ADDR] == f"{leader['hostname']}.{leader['subdomain']}"
        assert (environment[Env.NODES_PER_REPLICA], environment[Env.NODE_INDEX]) == ("2", str(index))
    assert "readinessProbe" in leader["containers"][0]
    assert not {"readinessProbe", "livenessProbe", "startupProbe", "ports"} & other["containers"][0].keys()


def test_replicas_are_counted_and_selected_by_their_first_pods():
    cluster = started()
    rollout = cluster.status.rollout
    assert (rollout.desired, rollout.replicas, rollout.ready, rollout.summary) == (2, 2, 2, "2/2")
    service = cluster.services[f"{cluster.base}-{Role.ROLLOUT}"]["spec"]["selector"]
    assert service[labels.NODE_INDEX] == "0"
    assert rollout.selector == ",".join(f"{key}={value}" for key, value in service.items())


def test_the_selector_of_engines_of_one_pod_stays_as_it_was():
    cluster = FakeCluster().start()
    assert labels.NODE_INDEX not in cluster.status.rollout.selector


def test_an_engine_is_ready_only_when_all_its_pods_are():
    cluster = started()
    cluster.change(cluster.pod("rollout-0-i0-1"), is_ready=False)
    cluster.step()
    assert (cluster.status.rollout.ready, cluster.status.rollout.replicas) == (1, 2)


LOSSES = {
    "deleted": {"is_deleting": True},
    "failed": {"phase": "Failed", "is_ready": False},
    "done": {"phase": "Succeeded", "is_ready": False},
}


@pytest.mark.parametrize("lost", ["rollout-0-i0", "rollout-0-i0-1"])
@pytest.mark.parametrize("how", LOSSES)
def test_an_engine_that_loses_any_of_its_pods_is_replaced_whole(lost: str, how: str):
    cluster = started()
    cluster.change(cluster.pod(lost), **LOSSES[how])
    plan = cluster.step()
    assert cluster.names("rollout") == REPLACED
    assert cluster.names("rollout", is_deleting=True) == ["rollout-0-i0", "rollout-0-i0-1"]
    assert (cluster.status.attempt, cluster.status.phase) == (1, Phase.RUNNING)
    assert len(replacements(plan)) == 1
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("rollout") == REPLACED


@pytest.mark.parametrize("lost", ["rollout-0-i0", "rollout-0-i0-1"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "starting"])
def test_an_engine_of_which_a_pod_vanished_between_two_looks_is_replaced_whole(lost: str, is_running: bool):
    cluster = started() if is_running else a_cluster()
    cluster.settle()
    cluster.vanish(cluster.pod(lost))
    cluster.step()
    assert cluster.names("rollout") == REPLACED


@pytest.mark.parametrize("lost", ["rollout-0-i0", "rollout-0-i0-1"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "starting"])
def test_an_operator_that_starts_anew_replaces_an_engine_that_lacks_a_pod(lost: str, is_running: bool):
    cluster = started() if is_running else a_cluster()
    cluster.settle()
    cluster.vanish(cluster.pod(lost))
    cluster.state = ProcessState()
    cluster.step()
    assert cluster.names("rollout") == REPLACED
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("rollout") == REPLACED


def test_a_pod_of_a_new_engine_that_could_not_be_made_is_made_later_and_the_others_stay():
    cluster = a_cluster()
    cluster.refused_pods = {cluster.pod("rollout-0-i0-1")}
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i0", *WITHOUT_THE_FIRST]
    cluster.refused_pods = set()
    cluster.step()
    assert cluster.names("rollout") == ALL
    assert cluster.names("rollout", is_deleting=True) == []


def test_an_operator_that_starts_anew_replaces_an_engine_that_could_not_be_made_whole_once():
    cluster = a_cluster(replicas=1)
    cluster.refused_pods = {cluster.pod(f"rollout-0-i{incarnation}-1") for incarnation in range(5)}
    cluster.settle()
    cluster.state = ProcessState()
    cluster.settle()
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.names("rollout") == ["rollout-0-i1"]


def test_fewer_replicas_remove_whole_engines_the_highest_first():
    cluster = started()
    assert cluster.spec is not None and cluster.spec.rollout is not None
    cluster.spec = cluster.spec.model_copy(
        update={"rollout": cluster.spec.rollout.model_copy(update={"replicas": 1})}
    )
    cluster.step()
    assert cluster.names("rollout") == ALL[:2]
    assert cluster.status.rollout.replicas == 2
    cluster.vanish_deleted()
    cluster.settle()
    assert cluster.status.rollout.replicas == 1


def test_an_engine_of_which_a_pod_has_no_node_has_no_room_and_is_one_replica_that_waits():
    cluster = a_cluster(replicas=1)
    cluster.has_room = False
    cluster.settle()
    cluster.bind(cluster.pod("trainer-a1-0"))
    cluster.settle()
    cluster.bind(cluster.pod("rollout-0-i0"))
    cluster.settle()
    assert cluster.status.waiting_for_room is not None
    assert cluster.status.rollout.summary == "0/1"
    cluster.bind(cluster.pod("rollout-0-i0-1"))
    cluster.settle()
    assert cluster.status.waiting_for_room is None


def test_an_engine_that_keeps_ending_is_replaced_with_pauses_that_grow():
    cluster = a_cluster(replicas=1).start()
    pauses = []
    for incarnation in range(4):
        name = cluster.pod(f"rollout-0-i{incarnation}-1")
        cluster.run_all()
        cluster.end(name, termination(1, "no"))
        waited = 0
        while f"rollout-0-i{incarnation + 1}" not in cluster.names("rollout"):
            cluster.step()
            cluster.now += timedelta(seconds=1)
            waited += 1
        cluster.vanish_deleted()
        pauses.append(waited)
    assert pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0]


def test_a_pod_that_ended_its_engine_is_named_with_its_cause():
    cluster = a_cluster(replicas=1).start()
    message = termination_message(1, "Error", "the vLLM engine died")
    cluster.end(cluster.pod("rollout-0-i0-1"), termination(1, message))
    cluster.step()
    ready = cluster.condition(ConditionType.ROLLOUT_READY)
    assert ready.status == "False"
    assert "rollout-0-i0-1" in ready.message and "the vLLM engine died" in ready.message


def test_a_user_error_of_any_pod_of_an_engine_ends_a_job_that_has_not_begun():
    cluster = a_cluster(replicas=1).start()
    waiting = EngineCounts(desired=1, known=0, current=0)
    cluster.progress = report(
        state=TrainerState.WAITING_FOR_ROLLOUT, step=0, policy_version="1.0", engines=waiting
    )
    cluster.settle()
    message = termination_message(ExitCode.USER_ERROR, "UserError", "vLLM refuses this configuration")
    end = replace(termination(ExitCode.USER_ERROR, message), container="engine")
    cluster.end(cluster.pod("rollout-0-i0-1"), end)
    cluster.step()
    assert cluster.status.phase == Phase.FAILED
    assert cluster.status.last_failure is not None
    assert "vLLM refuses this configuration" in cluster.status.last_failure.message


def test_a_finished_job_gives_all_pods_of_its_engines_back():
    cluster = started()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    assert cluster.names("rollout") == []


def replacements(plan: Plan) -> list[str]:
    return [event.why.message for event in plan.events if event.why.reason == "EngineReplaced"]
