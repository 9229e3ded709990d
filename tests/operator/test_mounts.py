"""What a pod is given of its namespace: claims, ConfigMaps, the Hub's cache and the secrets it may use."""

from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.volume_paths import weights_path
from grpo_api.v1alpha1.spec.disk import DiskSpec
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import trainer_pod

from .fake_cluster import IMAGE, UID, spec

REWARD = {"name": "mine", "configMap": {"name": "code", "key": "reward.py", "function": "score"}}


def pods(**changes: Any) -> list[dict[str, Any]]:
    """The pod specs of a trainer pod and a rollout pod."""
    snapshot = JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=spec(**changes), image=IMAGE)
    made = (trainer_pod(snapshot, attempt=1, index=0), rollout_pod(snapshot, replica=0, incarnation=0))
    return [child.body["spec"] for child in made]


def mounted(pod: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(volume, mount) at a path."""
    mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == path)
    return next(v for v in pod["volumes"] if v["name"] == mount["name"]), mount


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod["containers"][0]["env"]
    }


def test_claims_of_model_and_data_are_mounted_read_only_where_the_runtime_looks():
    for pod in pods(model={"source": "pvc://models/qwen"}, dataset={"source": "pvc://data/train.jsonl"}):
        assert variables(pod)["GRPO_VOLUMES_DIR"] == "/grpo/volumes"
        for name in ("models", "data"):
            volume, mount = mounted(pod, f"/grpo/volumes/claims/{name}")
            assert volume["persistentVolumeClaim"] == {"claimName": name, "readOnly": True}
            assert mount["readOnly"] is True


def test_config_maps_of_data_and_rewards_are_mounted():
    for pod in pods(dataset={"source": "configmap://tiny/train.jsonl"}, rewards=[REWARD]):
        for name in ("tiny", "code"):
            volume, mount = mounted(pod, f"/grpo/volumes/configmaps/{name}")
            assert (volume["configMap"], mount["readOnly"]) == ({"name": name}, True)


def test_a_claim_that_is_used_twice_is_one_volume():
    (trainer, rollout) = pods(
        model={"source": "pvc://shared/model"},
        dataset={"source": "pvc://shared/train.jsonl"},
        checkpoint={"claimName": "shared"},
    )
    for pod, is_written in ((trainer, True), (rollout, False)):
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [{"claimName": "shared"} | ({} if is_written else {"readOnly": True})]
        assert mounted(pod, "/grpo/volumes/claims/shared")[1]["readOnly"] is True
    volume, mount = mounted(trainer, "/output")
    assert "readOnly" not in mount and mount["subPath"]
    assert volume == mounted(trainer, "/grpo/volumes/claims/shared")[0]


DISK = {"to": "pvc://weights/copy"}


def test_the_claim_of_weights_is_written_by_the_first_trainer_pod_and_read_by_rollout_pods():
    snapshot = JobSnapshot.take(
        namespace="default",
        job="copy",
        uid=UID,
        spec=spec(weightSync={"disk": DISK}, trainer={"numNodes": 2}),
        image=IMAGE,
    )
    trainer, other = (trainer_pod(snapshot, attempt=1, index=index).body["spec"] for index in (0, 1))
    rollout = rollout_pod(snapshot, replica=0, incarnation=0).body["spec"]
    path = str(weights_path(DiskSpec(**DISK), job=snapshot.config.job, volumes_dir=Path("/grpo/volumes")))
    mount_path = path.removesuffix("/copy")
    volume, mount = mounted(trainer, mount_path)
    assert (volume["persistentVolumeClaim"], mount.get("readOnly")) == ({"claimName": "weights"}, None)
    volume, mount = mounted(rollout, mount_path)
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    assert mount["readOnly"] is True
    assert "source-weights" not in {volume["name"] for volume in other["volumes"]}


def test_a_claim_of_weights_may_be_that_of_checkpoints_and_of_the_model():
    trainer, rollout = pods(
        weightSync={"disk": {"to": "pvc://shared"}},
        model={"source": "pvc://shared/model"},
        checkpoint={"claimName": "shared"},
    )
    for pod, is_written in ((trainer, True), (rollout, False)):
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [{"claimName": "shared"} | ({} if is_written else {"readOnly": True})]
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert len(mounts) == len(set(mounts))
    assert "readOnly" not in mounted(trainer, "/grpo/volumes/weights/shared")[1]


def test_the_credentials_of_a_bucket_of_weights_are_in_the_pods_that_use_it():
    disk = {"to": "s3://models/copy", "secret": "store"}
    for pod in pods(weightSync={"disk": disk}, export=[{"to": "s3://models/trained", "secret": "store"}]):
        volume, mount = mounted(pod, "/grpo/volumes/secrets/store")
        assert volume["secret"] == {"secretName": "store", "defaultMode": 0o440}
        assert mount["readOnly"] is True
        assert not [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]


def test_without_a_cache_claim_every_pod_has_a_cache_of_its_own():
    for pod in pods():
        assert variables(pod)["HF_HOME"] == "/cache/huggingface"
        assert not {"HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"} & set(variables(pod))


@pytest.mark.parametrize("offline", [False, True])
def test_the_hubs_cache_is_on_its_claim_and_written_only_when_online(offline: bool):
    for pod in pods(hub={"cacheClaim": "hub", "offline": offline}):
        # also where the cache is read-only, what `datasets` makes of its files goes somewhere else
        assert not variables(pod)["HF_DATASETS_CACHE"].startswith(variables(pod)["HF_HOME"])
        volume, mount = mounted(pod, variables(pod)["HF_HOME"])
        assert volume["persistentVolumeClaim"] == {"claimName": "hub"} | (
            {"readOnly": True} if offline else {}
        )
        assert mount.get("readOnly", False) is offline
        assert variables(pod).get("HF_HUB_OFFLINE") == ("1" if offline else None)


def test_the_hubs_token_is_a_file_from_the_users_secret_and_no_variable():
    for pod in pods(hub={"tokenSecret": "mine"}):
        assert variables(pod)["HF_TOKEN_PATH"] == "/etc/grpo/hub-token/token"
        volume, mount = mounted(pod, "/etc/grpo/hub-token")
        items = [{"key": "token", "path": "token"}]
        assert volume["secret"] == {"secretName": "mine", "defaultMode": 0o440, "items": items}
        assert mount["readOnly"] is True
        assert all("valueFrom" not in entry for entry in pod["containers"][0]["env"])


def test_the_secrets_of_uploads_and_trackers_are_files_of_the_first_trainer_pod_alone():
    uploads = [
        {"to": "hf://org/trained", "secret": "hub-write"},
        {"to": "s3://models/run-1", "secret": "store"},
        {"to": "s3://models/run-2", "secret": "store"},
    ]
    trackers = [{"name": "wandb", "secret": "wandb"}]
    made = spec(export=uploads, trackers=trackers, trainer={"numNodes": 2})
    snapshot = JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=made, image=IMAGE)
    first, second = (trainer_pod(snapshot, attempt=1, index=index).body["spec"] for index in (0, 1))
    others = [second, rollout_pod(snapshot, replica=0, incarnation=0).body["spec"]]
    folders = {mount["mountPath"]: mount for mount in mounts(first) if "/secrets/" in mount["mountPath"]}
    assert folders.keys() == {f"/grpo/volumes/secrets/{name}" for name in ("hub-write", "store", "wandb")}
    for path, mount in folders.items():
        volume, _ = mounted(first, path)
        assert volume["secret"] == {"secretName": path.rpartition("/")[2], "defaultMode": 0o440}
        assert mount["readOnly"]
    for pod in others:
        assert not any("/secrets/" in mount["mountPath"] for mount in mounts(pod))
    # a variable would be inherited by every process of the pod
    assert not any("store" in str(value) for pod in (first, *others) for value in variables(pod).values())


def test_the_headers_of_reward_services_are_files_of_the_first_trainer_pod_alone():
    services = [
        {"name": name, "service": {"url": "https://judge/score", "headersSecret": secret}}
        for name, secret in (("a", "judge"), ("b", "judge"), ("c", "store"))
    ]
    upload = {"to": "s3://models/run-1", "secret": "store"}
    for rollout in ({"replicas": 1}, None):
        made = spec(rewards=services, export=[upload], trainer={"numNodes": 2}, rollout=rollout)
        snapshot = JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=made, image=IMAGE)
        first, second = (trainer_pod(snapshot, attempt=1, index=index).body["spec"] for index in (0, 1))
        paths = [mount["mountPath"] for mount in mounts(first) if "/secrets/" in mount["mountPath"]]
        assert sorted(paths) == ["/grpo/volumes/secrets/judge", "/grpo/volumes/secrets/store"]
        volume, mount = mounted(first, "/grpo/volumes/secrets/judge")
        assert volume["secret"] == {"secretName": "judge", "defaultMode": 0o440}
        assert mount["readOnly"]
        assert not any("/secrets/" in mount["mountPath"] for mount in mounts(second))


def mounts(pod):
    return pod["containers"][0]["volumeMounts"]


def test_every_pod_pulls_its_image_with_the_secrets_of_the_spec():
    for pod in pods(imagePullSecrets=["registry", "mirror"]):
        assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert all("imagePullSecrets" not in pod for pod in pods())


def test_no_volume_name_is_used_twice():
    everything = {
        "model": {"source": "pvc://models/qwen"},
        "dataset": {"source": "configmap://tiny/train.jsonl"},
        "rewards": [REWARD],
        "hub": {"cacheClaim": "hub"},
        "checkpoint": {"claimName": "checkpoints"},
    }
    for pod in pods(**everything):
        names = [volume["name"] for volume in pod["volumes"]]
        assert len(names) == len(set(names))
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(names)
