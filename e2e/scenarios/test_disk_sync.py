"""Weights by files: engines on real pods read them from a claim."""

import json

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, CLAIM = "disk", "weights"


def test_engines_read_every_version_from_a_claim_that_the_first_trainer_pod_writes(
    namespace: Namespace,
) -> None:
    job = copy_job(
        JOB,
        claim="runs",
        algorithm={"steps": 6},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 2},
        weightSync={"disk": {"to": f"pvc://{CLAIM}/copy", "keep": 2}},
    )
    namespace.apply(volume_claim(CLAIM), volume_claim("runs"), job)
    namespace.wait_for_finish(JOB)

    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    assert namespace.status(JOB)["weightSync"]["backend"] == "Disk"
    steps = [record.values for record in namespace.metrics("runs")]
    assert len(steps) == 6
    assert all(values["sync/max_probe_error"] < 1e-4 for values in steps)

    store = namespace.claim_folder(CLAIM) / "copy"
    versions = sorted(path.name for path in store.glob("version-*"))
    assert versions == ["version-000001-000004", "version-000001-000005"]
    assert (store / "LATEST").read_text().strip() == versions[-1]
    manifest = json.loads((store / versions[-1] / "manifest.json").read_text())
    assert manifest["job"]["uid"] == namespace.job(JOB)["metadata"]["uid"]
    assert {"config.json", "model.safetensors"} <= manifest["files"].keys()


def test_a_claim_that_is_not_there_is_told_as_the_cause(namespace: Namespace) -> None:
    namespace.apply(copy_job("lost", weightSync={"disk": {"to": "pvc://no-such-claim"}}))
    namespace.wait_until(
        lambda: "no-such-claim" in json.dumps(namespace.status("lost").get("conditions", ())),
        "the missing claim is named",
        timeout_seconds=60,
    )
