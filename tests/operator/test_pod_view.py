"""Reading pods as kubelets report them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from grpo_operator.observe.pod_view import is_silent, pod_view


def reported(status: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "copy-abc123-trainer-a2-1",
            "uid": "u",
            "labels": {"grpo.dev/role": "trainer"},
            **meta,
        },
        "spec": {"nodeName": "node-a"},
        "status": status,
    }


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "trainer", "restartCount": 1, **state}]}


def test_a_pod_that_is_not_ready_says_since_when():
    since = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    view = pod_view(reported({"phase": "Running", "conditions": [since]}))
    assert view is not None and view.unready_since == datetime(2026, 11, 21, 12, tzinfo=UTC)
    view = pod_view(reported({"phase": "Running", "conditions": [since | {"status": "True"}]}))
    assert view is not None and view.unready_since is None


def test_a_running_pod():
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    view = pod_view(reported(status | container(state={"running": {}})))
    assert view is not None
    assert (view.position, view.phase, view.is_ready, view.node) == ((2, 1), "Running", True, "node-a")
    assert (view.termination, view.disruption, view.start_problem) == (None, None, None)


def test_a_pod_says_which_image_it_asks_for_and_which_it_runs():
    running = container(state={"running": {}}, imageID="example.test/runtime@sha256:abc")
    item = reported({"phase": "Running"} | running)
    item["spec"]["containers"] = [
        {"name": "istio-proxy", "image": "proxy:1"},
        {"name": "trainer", "image": "example.test/runtime:1"},
    ]
    view = pod_view(item)
    assert view is not None
    assert (view.image, view.image_id) == ("example.test/runtime:1", "example.test/runtime@sha256:abc")
    waiting = pod_view(reported({"phase": "Pending"} | container(state={"waiting": {}}, imageID="")))
    assert waiting is not None and waiting.image_id == ""


def test_an_ended_container_keeps_code_reason_message_and_time():
    ended = {"exitCode": 7, "reason": "OOMKilled", "message": "m", "finishedAt": "2026-11-21T12:00:00Z"}
    view = pod_view(reported({"phase": "Failed"} | container(state={"terminated": ended})))
    assert view is not None and view.termination is not None
    assert (view.termination.exit_code, view.termination.reason, view.termination.message) == (
        7,
        "OOMKilled",
        "m",
    )
    assert view.termination.finished_at == datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (40, "Failed")])
def test_a_trainer_pod_is_over_with_its_container_although_its_phase_follows_later(code: int, phase: str):
    item = reported({"phase": "Running"} | container(state={"terminated": {"exitCode": code}}))
    item["spec"]["restartPolicy"] = "Never"
    view = pod_view(item)
    assert view is not None and (view.is_over, view.phase) == (True, phase)
    item["spec"]["restartPolicy"] = "Always"  # an engine is started again
    view = pod_view(item)
    assert view is not None and not view.is_over


@pytest.mark.parametrize(
    ("phase", "policy", "is_settling"),
    [("Running", "Never", True), ("Failed", "Never", False), ("Running", "Always", False)],
)
def test_only_the_phase_says_that_the_node_has_reported_the_end_of_the_pod(
    phase: str, policy: str, is_settling: bool
):
    item = reported({"phase": phase} | container(state={"terminated": {"exitCode": 137}}))
    item["spec"]["restartPolicy"] = policy
    view = pod_view(item)
    assert view is not None and view.is_settling is is_settling


def test_a_pod_with_a_foreign_container_that_runs_on_is_not_over():
    status = {"phase": "Running"} | container(state={"terminated": {"exitCode": 0}})
    status["containerStatuses"].append({"name": "sidecar", "state": {"running": {}}})
    item = reported(status)
    item["spec"]["restartPolicy"] = "Never"
    view = pod_view(item)
    assert view is not None and view.termination is not None
    assert (view.is_over, view.is_settling, view.phase) == (False, False, "Running")


def test_the_end_before_a_restart_is_kept_apart():
    last = {"terminated": {"exitCode": 40, "reason": "Error"}}
    view = pod_view(reported(container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=last)))
    assert view is not None and view.last_termination is not None and view.start_problem is not None
    assert (view.last_termination.exit_code, view.start_problem.reason) == (40, "CrashLoopBackOff")


@pytest.mark.parametrize(
    ("status", "meta", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, {}, "Evicted"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Drain"}]}, {}, "Drain"),
        ({"conditions": [{"type": "TerminationTarget", "status": "True", "reason": "Preempted"}]},
         {"deletionTimestamp": "2026-11-21T12:00:00Z"}, "Preempted"),
        ({"phase": "Running"}, {"deletionTimestamp": "2026-11-21T12:00:00Z"}, "PodDeleted"),
    ],
)  # fmt: skip
def test_disruptions(status: dict[str, Any], meta: dict[str, Any], reason: str):
    view = pod_view(reported(status, **meta))
    assert view is not None and view.disruption is not None
    assert view.disruption.reason == reason


def test_a_pod_that_is_deleted_says_when_its_grace_period_is_over():
    view = pod_view(reported({"phase": "Running"}, deletionTimestamp="2026-11-21T12:00:00Z"))
    assert view is not None and view.must_end_by == datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_a_pod_that_is_starting_normally_has_no_start_problem(reason: str):
    view = pod_view(reported({"phase": "Pending"} | container(state={"waiting": {"reason": reason}})))
    assert view is not None and view.start_problem is None


def test_a_folder_that_its_node_cannot_make_on_the_claim_is_told_with_the_claim():
    why = 'failed to create subPath directory for volumeMount "output" of container "trainer"'
    waiting = {"reason": "CreateContainerConfigError", "message": why}
    item = reported({"phase": "Pending"} | container(state={"waiting": waiting}))
    item["spec"]["volumes"] = [{"name": "output", "persistentVolumeClaim": {"claimName": "results"}}]
    view = pod_view(item)
    assert view is not None and view.start_problem is not None
    assert view.start_problem.reason == "CreateContainerConfigError"
    assert "cannot be made on claim results" in view.start_problem.message


def test_an_unschedulable_pod_says_why():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    view = pod_view(reported({"phase": "Pending", "conditions": [condition]}))
    assert view is not None and view.start_problem is not None
    assert (view.start_problem.reason, view.start_problem.message) == ("Unschedulable", "0/1 nodes")


def test_what_its_node_says_of_other_containers_is_not_taken_for_ours():
    ours = {"name": "trainer", "restartCount": 3, "state": {"running": {}}}
    sidecar = {"name": "mesh", "restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    view = pod_view(reported({"phase": "Running", "containerStatuses": [sidecar, ours]}))
    assert view is not None
    assert (view.restarts, view.start_problem) == (3, None)


def test_a_pod_knows_when_it_was_made():
    view = pod_view(reported({}, creationTimestamp="2026-11-21T12:00:00Z"))
    assert view is not None and view.created_at == datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "reason",
    ["Evicted", "Preempting", "NodeLost", "Shutdown", "NodeShutdown", "Terminated", "NodeAffinity"],
)
def test_a_pod_that_its_node_or_the_scheduler_ended_is_disrupted_whatever_its_container_did(reason: str):
    status = {"phase": "Failed", "reason": reason} | container(state={"terminated": {"exitCode": 137}})
    view = pod_view(reported(status))
    assert view is not None and view.disruption is not None
    assert view.disruption.reason == reason


def test_a_pod_that_failed_by_itself_is_not_disrupted():
    status = {"phase": "Failed", "reason": "DeadlineExceeded"}
    view = pod_view(reported(status | container(state={"terminated": {"exitCode": 1}})))
    assert view is not None and view.disruption is None


def test_a_pod_with_a_foreign_name_is_not_ours():
    item = reported({})
    item["metadata"]["name"] = "debugger"
    assert pod_view(item) is None


def test_a_pod_whose_labels_were_taken_away_is_still_read_by_its_name():
    item = reported({"phase": "Running"})
    del item["metadata"]["labels"]
    view = pod_view(item)
    assert view is not None and view.position == (2, 1)


def test_a_pod_that_its_node_refused_says_why_although_it_never_had_a_container():
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}
    view = pod_view(reported(status))
    assert view is not None and view.start_problem is not None
    assert (view.start_problem.reason, view.start_problem.message) == (
        "OutOfcpu",
        "Node didn't have enough resource: cpu",
    )


def test_a_container_its_node_lost_is_a_disruption_and_not_a_crash():
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "could not be located"}
    view = pod_view(reported({"phase": "Failed"} | container(state={"terminated": lost})))
    assert view is not None and view.disruption is not None
    assert (view.disruption.reason, view.disruption.message) == (
        "ContainerStatusUnknown",
        "could not be located",
    )


@pytest.mark.parametrize(("written", "carried"), [("Node lost: (a)", "Nodelosta"), ("42", "PodTrouble")])
def test_a_reason_becomes_a_word_that_a_condition_can_carry(written: str, carried: str):
    target = {"type": "DisruptionTarget", "status": "True", "reason": written}
    view = pod_view(reported({"conditions": [target]}))
    assert view is not None and view.disruption is not None
    assert view.disruption.reason == carried


NOTHING_SAID = {"phase": "Pending"} | container(state={"waiting": {"reason": "ContainerCreating"}})
FAILED_MOUNT = {
    "type": "Warning",
    "reason": "FailedMount",
    "message": 'MountVolume.SetUp failed for volume "source-0" : configmap "rewards" not found',
    "lastTimestamp": "2026-11-21T12:00:05Z",
    "metadata": {},
}


def test_a_mount_that_fails_is_explained_by_its_event():
    view = pod_view(reported(NOTHING_SAID), [FAILED_MOUNT])
    assert view is not None and view.start_problem is not None
    assert view.start_problem.reason == "FailedMount"
    assert (
        view.start_problem.message.startswith("a volume cannot be mounted")
        and "rewards" in view.start_problem.message
    )


def test_the_events_of_a_pod_that_runs_are_ignored():
    running = {"phase": "Running"} | container(state={"running": {}})
    view = pod_view(reported(running), [FAILED_MOUNT])
    assert view is not None and view.start_problem is None
    assert not is_silent(reported(running))


def test_only_a_pod_with_a_node_whose_container_says_nothing_is_silent():
    assert is_silent(reported(NOTHING_SAID))
    assert is_silent(reported({"phase": "Pending"}))
    unscheduled = reported({"phase": "Pending"})
    unscheduled["spec"] = {}
    assert not is_silent(unscheduled)
    refused = reported({"phase": "Pending"} | container(state={"waiting": {"reason": "ErrImagePull"}}))
    assert not is_silent(refused)
    refused["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    assert is_silent(refused)


def test_a_pod_has_been_scheduled_since_its_condition_says_so():
    at = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    view = pod_view(reported({"conditions": [at]}, creationTimestamp="2026-11-21T11:00:00Z"))
    assert view is not None and view.scheduled_at == datetime(2026, 11, 21, 12, tzinfo=UTC)
    item = reported({"conditions": [at | {"status": "False"}]}, creationTimestamp="2026-11-21T11:00:00Z")
    view = pod_view(item)  # its node stood in it from the start
    assert view is not None and view.scheduled_at == datetime(2026, 11, 21, 11, tzinfo=UTC)
    del item["spec"]["nodeName"]
    view = pod_view(item)
    assert view is not None and view.scheduled_at is None


@pytest.mark.parametrize(("label", "times"), [("3", 3), ("x", 0), ("", 0)])
def test_a_pod_says_how_often_its_job_had_given_its_nodes_back(label: str, times: int):
    view = pod_view(reported({}, labels={"grpo.dev/given-back": label}))
    assert view is not None and view.given_back == times


SEEN = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


@pytest.mark.parametrize(
    ("status", "node", "expected"),
    [
        ({"phase": "Pending"}, "", "nope"),
        ({}, "", "nope"),
        ({"phase": "Pending"} | SEEN, "", ""),
        ({"phase": "Pending"}, "node-a", ""),
        ({"phase": "Failed"}, "", ""),
    ],
)
def test_a_pod_without_a_word_from_its_scheduler_names_it(status: dict[str, Any], node: str, expected: str):
    item = reported(status)
    item["spec"] = {"schedulerName": "nope", "nodeName": node}
    view = pod_view(item)
    assert view is not None and view.unseen_by == expected
