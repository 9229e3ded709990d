"""What a job adds to its pods by podTemplate, and what it may not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec.pod_template import (
    OWNED_PREFIX_OF_VARIABLES,
    OWNED_PREFIXES_OF_VOLUMES,
    OWNED_VARIABLES,
    OWNED_VOLUMES,
    PodContainer,
    PodSettings,
)
from grpo_api.v1alpha1.status import ConditionType
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.trainer import trainer_pod
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.permissions import Permissions

from .fake_cluster import FakeCluster, run, spec

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
GPUS = {"limits": {"nvidia.com/gpu": 4}}


def trainer(**template: Any) -> KubeObject:
    return trainer_pod(run(trainer={"podTemplate": template}), attempt=1, index=0).body


def container_of(pod: KubeObject) -> KubeObject:
    (container,) = pod["spec"]["containers"]
    return container


def shared_memory_of(pod: KubeObject) -> str:
    return next(
        volume["emptyDir"]["sizeLimit"] for volume in pod["spec"]["volumes"] if volume["name"] == "shm"
    )


SETTINGS: KubeObject = {
    "nodeSelector": {"gpu": "h100"},
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]}},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": "high",
    "schedulerName": "volcano",
    "runtimeClassName": "nvidia",
    "serviceAccountName": "bucket-reader",
    "volumes": [{"name": "certs", "configMap": {"name": "certs", "items": [{"key": "a", "path": "b"}]}}],
    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
    "terminationGracePeriodSeconds": 900,
    "hostNetwork": True,
}  # fmt: skip
CONTAINER: KubeObject = {
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "envFrom": [{"configMapRef": {"name": "nccl"}}],
    "volumeMounts": [{"name": "certs", "mountPath": "/mnt/certs", "readOnly": True}],
    "imagePullPolicy": "Always",
}


def allowed(model: type[PodSettings | PodContainer]) -> set[str]:
    refused = {rule.field[1:] for rule in model.rules if "is refused" in rule.sentence}
    return {str(field.alias) for field in model.model_fields.values()} - refused


def test_the_tables_above_have_every_field_that_is_allowed():
    assert set(SETTINGS) == allowed(PodSettings)
    assert set(CONTAINER) == allowed(PodContainer)


@pytest.mark.parametrize("field", SETTINGS)
def test_a_field_of_the_spec_arrives_in_the_pod_beside_what_is_the_operators(field: str):
    overlay = {"spec": {field: SETTINGS[field]}}
    job = run(trainer={"processesPerNode": 1, "podTemplate": overlay})
    made, plain = trainer_pod(job, attempt=1, index=0).body["spec"], trainer()["spec"]
    for pod in (made, plain):
        del pod["volumes"][0]  # the RunConfig, whose name has the hash of the spec
    if field == "volumes":
        assert made["volumes"] == plain["volumes"], "a volume that is mounted nowhere is left out"
    elif field == "tolerations":
        assert made[field] == [*plain[field], *SETTINGS[field]]
    else:
        assert made[field] == SETTINGS[field]
    changed = {key for key in made if made[key] != plain.get(key)} - {"containers"}
    assert changed <= {field, "dnsPolicy"}


def test_a_volume_of_the_job_is_mounted_where_it_says():
    pod = trainer(
        spec={"volumes": SETTINGS["volumes"]}, container={"volumeMounts": CONTAINER["volumeMounts"]}
    )
    assert pod["spec"]["volumes"][-1] == SETTINGS["volumes"][0]
    assert container_of(pod)["volumeMounts"][-1] == CONTAINER["volumeMounts"][0]


@pytest.mark.parametrize("is_read_only", [True, False])
def test_a_claim_that_the_operator_mounts_too_stays_one_volume(is_read_only: bool):
    job = run(
        model={"source": "pvc://models/qwen"},
        trainer={
            "podTemplate": {
                "spec": {
                    "volumes": [
                        {
                            "name": "mine",
                            "persistentVolumeClaim": {"claimName": "models", "readOnly": is_read_only},
                        }
                    ]
                },
                "container": {
                    "volumeMounts": [{"name": "mine", "mountPath": "/mnt/mine", "subPath": "logs"}]
                },
            }
        },
    )
    pod = trainer_pod(job, attempt=1, index=0).body
    (volume,) = (volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume)
    assert volume["persistentVolumeClaim"] == {
        "claimName": "models",
        **({"readOnly": True} if is_read_only else {}),
    }
    mounts = [mount for mount in container_of(pod)["volumeMounts"] if mount["name"] == volume["name"]]
    assert [mount["mountPath"] for mount in mounts] == ["/grpo/volumes/claims/models", "/mnt/mine"]
    assert [mount.get("readOnly", False) for mount in mounts] == [True, is_read_only]
    assert mounts[1]["subPath"] == "logs"


def test_fields_of_the_container_arrive_beside_the_operators_own():
    plain = container_of(trainer())
    made = container_of(
        trainer(container={key: CONTAINER[key] for key in ("env", "envFrom", "imagePullPolicy")})
    )
    assert [variable for variable in made["env"] if variable not in plain["env"]] == CONTAINER["env"]
    assert (made["envFrom"], made["imagePullPolicy"]) == (CONTAINER["envFrom"], "Always")
    assert {key for key in made if made[key] != plain.get(key)} == {"env", "envFrom", "imagePullPolicy"}


def test_labels_and_annotations_are_added():
    plain = trainer()["metadata"]
    made = trainer(metadata={"labels": {"team": "rl"}, "annotations": {"example.com/network": "fast"}})[
        "metadata"
    ]
    assert made["labels"] == {"team": "rl", **plain["labels"]}
    assert made["annotations"] == {"example.com/network": "fast"}


def test_each_role_has_its_own():
    job = run(rollout={"replicas": 1, "podTemplate": {"spec": {"priorityClassName": "low"}}})
    assert rollout_pod(job, replica=0, incarnation=0).body["spec"]["priorityClassName"] == "low"
    assert "priorityClassName" not in trainer_pod(job, attempt=1, index=0).body["spec"]


def test_a_text_that_looks_like_an_open_place_of_the_template_stays_as_it_is():
    values = ["${name}", "${image}", "$(GRPO_ATTEMPT) ${dollar}{name}"]
    mount = {"name": "own", "mountPath": "/mnt/${attempt}", "subPath": "${name}"}
    pod = trainer(
        spec={"volumes": [{"name": "own", "emptyDir": {}}]},
        container={
            "env": [{"name": f"A{i}", "value": value} for i, value in enumerate(values)],
            "volumeMounts": [mount],
        },
    )
    own = {f"A{i}" for i in range(len(values))}
    found = [variable["value"] for variable in container_of(pod)["env"] if variable["name"] in own]
    assert found == values
    assert container_of(pod)["volumeMounts"][-1] == mount


def test_the_grace_period_that_a_job_gives_is_that_of_the_pod_and_of_its_ranks():
    template = {"spec": {"terminationGracePeriodSeconds": 900}}
    job = run(trainer={"podTemplate": template}, rollout={"replicas": 1, "podTemplate": template})
    pod = trainer_pod(job, attempt=2, index=0, checkpoint_seconds=1000).body
    assert pod["spec"]["terminationGracePeriodSeconds"] == 900
    assert container_of(pod)["command"][-1] == "--grace-seconds=890"
    assert rollout_pod(job, replica=0, incarnation=0).body["spec"]["terminationGracePeriodSeconds"] == 900


@pytest.mark.parametrize(
    ("pods", "size"),
    [
        ({}, "1Gi"),
        ({"resources": GPUS}, "5Gi"),
        ({"resources": GPUS, "podTemplate": {"sharedMemory": "16Gi"}}, "16Gi"),
        ({"podTemplate": {"spec": {"resourceClaims": [{"name": "gpus"}]}}, "processesPerNode": 8}, "9Gi"),
    ],
)
def test_shared_memory_is_what_the_job_says_or_grows_with_its_gpus(pods: KubeObject, size: str):
    assert shared_memory_of(trainer_pod(run(trainer=pods), attempt=1, index=0).body) == size


def test_the_container_uses_the_devices_that_the_pod_claims():
    job = run(
        engine={"tensorParallelSize": 2},
        rollout={"replicas": 1, "podTemplate": {"spec": {"resourceClaims": SETTINGS["resourceClaims"]}}},
    )
    pod = rollout_pod(job, replica=0, incarnation=0).body
    assert container_of(pod)["resources"]["claims"] == [{"name": "gpus"}]
    assert shared_memory_of(pod) == "3Gi"


def test_claimed_gpus_count_as_gpus():
    claims = {"podTemplate": {"spec": {"resourceClaims": SETTINGS["resourceClaims"]}}}
    config = run(
        trainer={"processesPerNode": 2, **claims}, rollout={"replicas": 1, **claims}, engine={}
    ).config
    by_limits = run(
        trainer={"resources": {"limits": {"nvidia.com/gpu": 2}}},
        rollout={"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        engine={},
    ).config
    assert config == by_limits
    assert config != run(trainer={"processesPerNode": 2}, rollout={"replicas": 1}, engine={}).config


def test_no_volume_of_the_operator_has_a_name_that_is_free():
    job = run(
        model={"source": "pvc://models/qwen"},
        hub={"tokenSecret": "hub", "cacheClaim": "cache"},
        resumeFrom={"source": "pvc://runs/old"},
        trackers=[{"name": "mlflow", "url": "http://mlflow", "secret": "mlflow"}],
        checkpoint={"claimName": "own"},
    )
    pods = (trainer_pod(job, attempt=1, index=0), rollout_pod(job, replica=0, incarnation=0))
    names = {volume["name"] for pod in pods for volume in pod.body["spec"]["volumes"]}
    assert {"hub-token", "resumed", "source-0", "secret-0"} <= names
    assert all(name in OWNED_VOLUMES or name.startswith(OWNED_PREFIXES_OF_VOLUMES) for name in names)


def test_no_variable_of_the_operator_can_be_set():
    set_by_operator = set()
    for example in EXAMPLES:
        (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
        cluster = FakeCluster(parse_job(found).spec, name=found["metadata"]["name"]).start()
        own = (found["spec"].get(role, {}).get("podTemplate", {}) for role in ("trainer", "rollout"))
        added = {entry["name"] for part in own for entry in part.get("container", {}).get("env", ())}
        bodies = [cluster.bodies[name] for name in cluster.pods]
        set_by_operator |= {entry["name"] for body in bodies for entry in container_of(body)["env"]} - added
    free = {name for name in set_by_operator if not name.startswith(OWNED_PREFIX_OF_VARIABLES)}
    assert "HOME" in free
    assert free <= set(OWNED_VARIABLES)


ASKING = {
    "serviceAccountName": ("bucket-reader", Permissions(service_accounts=("other", "bucket-reader"))),
    "hostNetwork": (True, Permissions(has_host_network=True)),
}


@pytest.mark.parametrize("role", ["trainer", "rollout"])
@pytest.mark.parametrize("field", ASKING)
def test_a_job_waits_for_permission_and_says_who_can_give_it(role: str, field: str):
    value, permission = ASKING[field]
    cluster = FakeCluster(spec(**{role: {"podTemplate": {"spec": {field: value}}}}))
    plan = cluster.settle()
    assert (cluster.pods, plan.status.attempt) == ({}, 0)
    for kind in (ConditionType.READY, ConditionType.RUNNING):
        found = cluster.condition(kind)
        assert (found.status, found.reason) == ("False", "NotPermitted")
        assert f"{role}.podTemplate.spec.{field}" in found.message
        assert "podTemplates." in found.message
    cluster.permissions = permission
    cluster.start()
    names = cluster.names(role)
    assert names
    assert {cluster.bodies[cluster.pod(name)]["spec"][field] for name in names} == {value}


def test_a_job_that_runs_goes_on_when_the_permission_is_taken_back():
    cluster = FakeCluster(spec(trainer={"podTemplate": {"spec": {"hostNetwork": True}}}))
    cluster.permissions = Permissions(has_host_network=True)
    cluster.start()
    cluster.permissions = Permissions()
    cluster.settle()
    assert cluster.condition(ConditionType.RUNNING).status == "True"


def test_a_field_that_is_set_to_false_asks_for_nothing():
    cluster = FakeCluster(spec(trainer={"podTemplate": {"spec": {"hostNetwork": False}}})).start()
    (body,) = {name: cluster.bodies[name] for name in cluster.pods if "trainer" in name}.values()
    assert "hostNetwork" not in body["spec"]


def test_claimed_gpus_are_counted_where_a_job_is_described():
    claims = {"podTemplate": {"spec": {"resourceClaims": SETTINGS["resourceClaims"]}}}
    job = run(
        trainer={"numNodes": 2, "processesPerNode": 4, **claims},
        rollout={"replicas": 3, **claims},
        engine={"tensorParallelSize": 2},
    ).spec
    assert (job.trainer.num_gpus, job.num_rollout_gpus) == (4, 2)
    assert run(trainer={"processesPerNode": 4}).spec.trainer.num_gpus == 0
