"""What the cache keeps of an object: everything that is read, and nothing else."""

from typing import Any

import pytest

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER, TRAINER_CONTAINER
from grpo_api.v1alpha1.spec import Gang
from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS, PODS, WORKLOADS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.pod_view import is_silent, pod_view
from grpo_operator.observe.stored import pruned

MANAGED = [{"manager": "grpo-operator", "fieldsV1": {"f:spec": {}}}]


def test_of_a_jobs_annotations_only_the_one_that_is_read_is_kept() -> None:
    annotations = {"grpo.dev/accept-checkpoint-loss": "720", "kubectl.kubernetes.io/last-applied": "x" * 99}
    job = {"metadata": {"name": "copy", "annotations": annotations}, "spec": {}}
    assert pruned(JOBS, job)["metadata"]["annotations"] == {"grpo.dev/accept-checkpoint-loss": "720"}


def test_of_a_pod_groups_annotations_only_the_one_that_is_read_is_kept() -> None:
    annotations = {"grpo.dev/woken-at": "2026-11-28T12:00:00Z", "volcano.sh/preemptable": "true"}
    groups = GANG_SCHEDULERS[Gang.VOLCANO].kind
    group = {"metadata": {"name": "copy", "annotations": annotations}, "spec": {}}
    assert pruned(groups, group)["metadata"]["annotations"] == {"grpo.dev/woken-at": "2026-11-28T12:00:00Z"}


def test_of_a_workload_the_templates_of_its_pods_are_left_out() -> None:
    pod_set = {"name": "trainer", "count": 2}
    spec = {"queueName": "team", "podSets": [{**pod_set, "template": {"spec": {"containers": []}}}]}
    workload = {"metadata": {"name": "copy"}, "spec": spec, "status": {"admission": {"clusterQueue": "all"}}}
    kept = pruned(WORKLOADS, workload)
    assert kept["spec"] == {"queueName": "team", "podSets": [pod_set]}
    assert kept["status"] == workload["status"]


def a_pod(**status: Any) -> dict[str, Any]:
    meta = {
        "name": "copy-ab12-rollout-0-i0",
        "namespace": "default",
        "uid": "u1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-22T10:00:00Z",
        "labels": {"grpo.dev/given-back": "2"},
        "managedFields": MANAGED,
    }
    container = {
        "name": ROLLOUT_CONTAINER,
        "image": "runtime:1",
        "args": ["rollout"],
        "env": [{"name": "A", "value": "1"}],
    }
    ended = {"terminated": {"exitCode": 40, "reason": "Error", "message": "no such model"}}
    found = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "hostIP": "10.1.0.1",
        "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": ROLLOUT_CONTAINER,
                "ready": True,
                "restartCount": 3,
                "imageID": "sha256:1",
                "lastState": ended,
            }
        ],
    }
    spec = {
        "nodeName": "node-a",
        "restartPolicy": "Always",
        "containers": [container],
        "volumes": [{"name": "x"}],
    }
    return {"metadata": meta, "spec": spec, "status": found | status}


def an_ended_trainer() -> dict[str, Any]:
    pod = a_pod()
    pod["metadata"]["name"] = "copy-ab12cd-trainer-a1-0"
    pod["spec"]["restartPolicy"] = "Never"
    pod["spec"]["containers"][0]["name"] = TRAINER_CONTAINER
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    pod["status"]["containerStatuses"] = [{"name": TRAINER_CONTAINER, "state": ended, "restartCount": 0}]
    return pod


def without_pull_secret() -> dict[str, Any]:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no access"}}
    pod = a_pod(phase="Pending", containerStatuses=[{"name": ROLLOUT_CONTAINER, "state": waiting}])
    pod["spec"]["imagePullSecrets"] = [{"name": "absent"}]
    return pod


def unseen() -> dict[str, Any]:
    pod = a_pod(phase="Pending", conditions=[], containerStatuses=[])
    pod["spec"] |= {"nodeName": "", "schedulerName": "nope"}
    return pod


def without_folder() -> dict[str, Any]:
    why = 'failed to create subPath directory for volumeMount "output" of container "engine"'
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": why}}
    pod = a_pod(phase="Pending", containerStatuses=[{"name": ROLLOUT_CONTAINER, "state": waiting}])
    pod["spec"]["volumes"] = [{"name": "output", "persistentVolumeClaim": {"claimName": "results"}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "output", "subPath": "copy-ab12"}]
    return pod


PODS_OF_ALL_KINDS = (
    a_pod(),
    a_pod(phase="Failed", reason="Evicted", message="too much memory"),
    an_ended_trainer(),
    without_pull_secret(),
    unseen(),
    without_folder(),
)


@pytest.mark.parametrize(
    "pod", PODS_OF_ALL_KINDS, ids=["runs", "evicted", "ended", "not pulled", "unseen", "no folder"]
)
def test_a_pod_looks_the_same_to_all_who_read_it(pod):
    assert pod_view(pruned(PODS, pod), ()) == pod_view(pod, ())
    assert is_silent(pruned(PODS, pod)) == is_silent(pod)


def test_what_is_read_of_these_pods_is_there():
    """Or they would look the same because they look like nothing."""
    runs, evicted, ended, not_pulled, unseen, no_folder = (pod_view(pod, ()) for pod in PODS_OF_ALL_KINDS)
    assert runs is not None and runs.given_back == 2
    assert runs.last_termination is not None and runs.last_termination.exit_code == 40
    assert (runs.image, runs.image_id, runs.restarts) == ("runtime:1", "sha256:1", 3)
    assert evicted is not None and evicted.disruption is not None
    assert ended is not None and ended.is_settling and ended.is_done
    assert not_pulled is not None and is_silent(PODS_OF_ALL_KINDS[3])
    assert unseen is not None and unseen.unseen_by == "nope"
    assert no_folder is not None and no_folder.start_problem is not None
    assert "folder copy-ab12 cannot be made on claim results" in no_folder.start_problem.message


def test_what_nobody_reads_of_a_pod_is_not_kept():
    found = pruned(PODS, a_pod())
    assert "managedFields" not in found["metadata"]
    assert sorted(found["spec"]) == ["containers", "nodeName", "restartPolicy"]
    assert found["spec"]["containers"] == [{"name": ROLLOUT_CONTAINER, "image": "runtime:1"}]
    assert not {"hostIP", "qosClass"} & found["status"].keys()


def test_a_job_keeps_its_spec_and_its_status():
    job = {
        "metadata": {
            "name": "copy",
            "managedFields": MANAGED,
            "annotations": {"kubectl": "{}"},
            "generation": 2,
        },
        "spec": {"algorithm": {"steps": 10}, "rewards": [{"name": "copy"}]},
        "status": {"attempt": 1, "conditions": [{"type": "Ready"}]},
    }
    assert pruned(JOBS, job) == {**job, "metadata": {"name": "copy", "generation": 2}}


def test_of_a_config_map_only_what_the_pods_read_is_left_out():
    config = {"metadata": {"name": "c"}, "data": {RUN_CONFIG_KEY: "{}", "spec.json": "{}", "pods.json": "{}"}}
    assert pruned(CONFIG_MAPS, config)["data"] == {"spec.json": "{}", "pods.json": "{}"}
    assert RUN_CONFIG_KEY in config["data"]  # what it is made from is not touched


def test_the_cache_keeps_no_more():
    cache = Cache()
    owner = {
        "kind": "GRPOJob",
        "apiVersion": "grpo.dev/v1alpha1",
        "name": "copy",
        "uid": "j1",
        "controller": True,
    }
    pod = a_pod()
    pod["metadata"]["ownerReferences"] = [owner]
    cache.put(PODS, pod)
    (found,) = cache.pods(("default", "j1"))
    assert found == pruned(PODS, pod)
