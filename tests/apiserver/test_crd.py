"""The CRD on a real API server: what users see of it."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.changes import fixed_paths, stays
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import GRPOJobSpec, WeightSyncBackend
from grpo_api.v1alpha1.spec.rollout import ROLLOUT_STAYS
from grpo_api.v1alpha1.status import (
    AsyncStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    ErrorSignature,
    GRPOJobStatus,
    LastFailure,
    Phase,
    QueueStatus,
    ResumedFrom,
    RoleStatus,
    RolloutStatus,
    Stopping,
    Suspension,
    WaitingForRoom,
    WeightSyncStatus,
)
from grpo_cluster.versions import program_path
from grpo_cluster.waiting import wait_until

from ..api.bad_specs import BASE, GOOD, merged
from .api_server import Jobs, Kubectl

pytestmark = pytest.mark.apiserver
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def job(jobs: Jobs) -> Iterator[str]:
    """The name of a stored job that has every field set."""
    name = "stored"
    jobs.create(merged(GOOD[-1].job, {"metadata": {"name": name}}))
    yield name
    jobs.delete(name)


def full_status() -> GRPOJobStatus:
    """A status with every field set."""
    conditions = tuple(
        Condition(
            type=kind,
            status=ConditionStatus.TRUE,
            reason="AsDesired",
            message="all is well",
            last_transition_time=NOW,
            observed_generation=1,
        )
        for kind in ConditionType
    )
    return GRPOJobStatus(
        observed_generation=1,
        phase=Phase.RUNNING,
        mode="Disaggregated",
        mode_reason="spec.mode is Disaggregated",
        config_digest="0" * 64,
        weight_sync=WeightSyncStatus(backend="Gloo", reason="trainer and engines run on CPU"),
        resumed_from=ResumedFrom(source="pvc://runs/first-1", job="first", job_uid="1", step=10),
        conditions=conditions,
        step=17,
        highest_step=17,
        total_steps=200,
        progress="17/200",
        reward="0.412",
        policy_version="2.17",
        tokens_per_second="8123",
        asynchronous=AsyncStatus(mean_staleness="1.06", max_staleness=3, num_queued=5, num_running=12),
        checkpoint_step=10,
        checkpoint_seconds=25,
        best_step=8,
        trainer=RoleStatus(desired=1, ready=1, summary="1/1"),
        rollout=RolloutStatus(desired=2, ready=2, summary="2/2", replicas=2, current=2, selector="a=b"),
        attempt=2,
        restarts=1,
        disruptions=1,
        failures_since_progress=1,
        disruptions_since_progress=1,
        highest_checkpoint_step=10,
        stopping=Stopping(since=NOW, reason="DeadlineExceeded", message="it took longer than an hour"),
        suspension=Suspension(
            since=NOW, until=NOW, reason="SuspendedByRule", message="rule gpu", spec_suspend=False
        ),
        suspended_seconds=60,
        queue=QueueStatus(name="team", workload="copy-0123ab"),
        given_back=1,
        waiting_for_room=WaitingForRoom(since=NOW, tried_at=NOW, held_back_until=NOW),
        micro_batch_tokens=512,
        starting_since=NOW,
        last_error=ErrorSignature(type="builtins.TypeError", where="mine.score:7", step=17),
        last_failure=LastFailure(
            attempt=1,
            role="trainer",
            pod="copy-0",
            node="node0",
            container="trainer",
            reason="OOMKilled",
            exit_code=137,
            message="it wanted more memory than its limit",
        ),
        notes="the GRPOJob CRD is older",
        revision="0123abcd",
        image="registry.example.com/runtime:1",
        image_id="registry.example.com/runtime@sha256:0123",
        start_time=NOW,
        completion_time=NOW,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted_with_the_defaults_of_the_models(example: Path, jobs: Jobs):
    (manifest,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    created = jobs.create(manifest, is_dry_run=True)
    assert created["spec"] == parse_job(manifest).to_object()["spec"]


def change_of(path: str) -> dict[str, Any]:
    """A merge patch that gives the immutable field another value, valid in itself."""
    others: dict[str, Any] = {
        "mode": "Auto",
        "image": "registry.example.com/other:2",
        "model": {"dtype": "float32"},
        "dataset": {"shuffle": True},
        "rewards": [{"name": "right", "weight": 3, "builtin": "exact_match"}],
        "algorithm": {"steps": 101},
        "sampling": {"temperature": 0.8},
        "trainer": {"numNodes": 3},
        "engine": {"maxModelLen": 4096},
        "imagePullSecrets": ["another"],
        "managedBy": "example.com/another",
        "rollout.resources": {"limits": {"memory": "33Gi"}},
        "rollout.minReplicas": 3,
        "rollout.nodesPerReplica": 4,
        "rollout.podTemplate": {"spec": {"priorityClassName": "low"}},
        "rollout.lostTimeoutSeconds": 61,
        "hub": {"tokenSecret": "another"},
        "weightSync": {"verify": True},
        "checkpoint": {"claimName": "another"},
        "resumeFrom": {"load": "Checkpoint"},
        "export": [{"to": "s3://models/another"}],
        "report": {"samplesEverySteps": 3},
        "trackers": [{"name": "mlflow", "url": "http://another"}],
        "async": {"maxStaleness": 5},
        "scheduling": {"gang": "Volcano"},
    }
    change = others[path]
    for name in reversed(path.split(".")):
        change = {name: change}
    return {"spec": change}


NOT_THERE = ("colocated", "environments")
"""Sections that the job with every field cannot have beside others."""


@pytest.mark.parametrize("path", [path for path in fixed_paths(GRPOJobSpec) if path not in NOT_THERE])
def test_what_is_fixed_cannot_be_changed(path: str, job: str, jobs: Jobs):
    refusal = jobs.try_patch(job, change_of(path))
    assert refusal is not None
    # a reward is compared by itself too
    said = {(field.partition("[")[0], sentence) for field, sentence in refusal.causes}
    assert said == {(f"spec.{path}", f'Invalid value: "object": {stays(path, is_optional=False).sentence}')}


def test_what_starts_colocated_engines_is_fixed_too(jobs: Jobs):
    on_ray = next(case.job for case in GOOD if case.what == "engines as actors of Ray")
    name = "on-ray"
    jobs.create(merged(on_ray, {"metadata": {"name": name}}))
    refusal = jobs.try_patch(name, {"spec": {"colocated": {"executor": "Processes"}}})
    assert refusal is not None
    sentence = stays("colocated", is_optional=False).sentence
    assert ("spec.colocated", f'Invalid value: "object": {sentence}') in refusal.causes
    jobs.delete(name)


def test_an_image_cannot_be_taken_away_or_added_later(job: str, jobs: Jobs):
    said = {("spec.image", f'Invalid value: "object": {stays("image", is_optional=True).sentence}')}
    refusal = jobs.try_patch(job, {"spec": {"image": None}})
    assert refusal is not None
    assert refusal.causes == said
    jobs.create(merged(BASE, {"metadata": {"name": "without-image"}}))
    refusal = jobs.try_patch("without-image", {"spec": {"image": "registry.example.com/runtime:1"}})
    jobs.delete("without-image")
    assert refusal is not None
    assert refusal.causes == said


def test_the_number_of_engines_and_of_restarts_may_change(job: str, jobs: Jobs):
    change = {"spec": {"rollout": {"replicas": 7}, "failurePolicy": {"maxRestarts": 9}}}
    assert jobs.try_patch(job, change) is None
    assert jobs.get(job)["spec"]["rollout"]["replicas"] == 7
    assert jobs.get(job)["spec"]["failurePolicy"]["maxRestarts"] == 9


def test_rollout_pods_can_be_neither_added_nor_taken_away(job: str, jobs: Jobs):
    said = {("spec.rollout", f'Invalid value: "object": {ROLLOUT_STAYS.sentence}')}
    refusal = jobs.try_patch(job, {"spec": {"mode": "Auto", "rollout": None}})
    assert refusal is not None
    assert said <= refusal.causes
    jobs.create(merged(BASE, {"metadata": {"name": "colocated"}}))
    refusal = jobs.try_patch("colocated", {"spec": {"rollout": {"replicas": 2}}})
    jobs.delete("colocated")
    assert refusal is not None
    assert refusal.causes == said


def test_a_colocated_job_has_no_replicas_to_scale(jobs: Jobs):
    jobs.create(merged(BASE, {"metadata": {"name": "colocated"}}))
    answer = jobs.try_scale("colocated", 3)
    jobs.delete("colocated")
    assert answer is not None
    assert answer.causes == {("spec.rollout", f'Invalid value: "object": {ROLLOUT_STAYS.sentence}')}


def test_every_field_of_the_spec_is_fixed_or_known_to_change(job: str, jobs: Jobs):
    spec = jobs.get(job)["spec"]
    fields = {section for section in spec if section not in ("rollout", "failurePolicy")}
    fields |= {f"{section}.{name}" for section in ("rollout", "failurePolicy") for name in spec[section]}
    live = {"rollout.replicas", "failurePolicy.maxRestarts", "stallTimeoutSeconds"}
    live |= {"startupDeadlineSeconds", "schedulingDeadlineSeconds", "activeDeadlineSeconds", "suspend"}
    live |= {"ttlSecondsAfterFinished", "ttlSecondsAfterFailed", "failurePolicy.rules", "queueName"}
    # a job has colocated or rollout, and environments or a rollout function
    assert fields | set(NOT_THERE) == {*fixed_paths(GRPOJobSpec), *live}


def test_the_status_keeps_all_that_the_operator_writes(job: str, jobs: Jobs):
    status = full_status()
    assert set(type(status).model_fields) == status.model_fields_set
    jobs.write_status(job, status.to_object())
    assert GRPOJobStatus.from_object(jobs.get(job)["status"]) == status


def test_a_status_may_be_as_long_as_the_models_allow(job: str, jobs: Jobs):
    status = full_status()
    failure = status.last_failure.model_copy(update={"message": "x" * 4096})
    conditions = tuple(each.model_copy(update={"message": "x" * 4096}) for each in status.conditions)
    longest = status.model_copy(update={"last_failure": failure, "conditions": conditions})
    jobs.write_status(job, longest.to_object())
    assert GRPOJobStatus.from_object(jobs.get(job)["status"]) == longest


def test_the_empty_status_of_a_new_job_is_accepted(job: str, jobs: Jobs):
    jobs.write_status(job, GRPOJobStatus().to_object())
    assert GRPOJobStatus.from_object(jobs.get(job)["status"]) == GRPOJobStatus()


def test_a_write_to_the_job_does_not_touch_its_status_and_a_status_write_not_its_spec(job: str, jobs: Jobs):
    jobs.try_patch(job, {"status": {"phase": "Failed"}})
    assert jobs.get(job)["status"] == {"observedGeneration": -1}
    jobs.write_status(job, GRPOJobStatus().to_object())
    assert jobs.get(job)["metadata"]["generation"] == 1


def test_kubectl_get_prints_the_columns_people_watch(job: str, jobs: Jobs, kubectl: Kubectl):
    jobs.write_status(job, full_status().to_object())
    columns = ["NAME", "PHASE", "MODE", "STEP", "REWARD", "TRAINER", "ROLLOUT", "RESTARTS", "AGE"]
    row = [job, "Running", "Disaggregated", "17/200", "0.412", "1/1", "2/2", "1"]
    head, found = kubectl.run("get", "grpo", job).splitlines()
    assert (head.split(), found.split()[:-1]) == (columns, row)
    [ready] = [each for each in full_status().conditions if each.type is ConditionType.READY]
    head, found = kubectl.run("get", "grpo", job, "-o", "wide").splitlines()
    assert head.split() == [*columns, "REASON", "TOKENS/S", "STALENESS", "CHECKPOINT", "QUEUE"]
    of_age = len(row)
    assert found.split()[:of_age] == row
    assert found.split()[of_age + 1 :] == [ready.reason, "8123", "1.06", "10", "team"]


def test_kubectl_wait_ends_when_a_job_is_finished(job: str, jobs: Jobs, kubectl: Kubectl):
    jobs.write_status(job, full_status().to_object())
    kubectl.run("wait", "--for=condition=Finished", f"grpojob/{job}", "--timeout=60s")


def test_kubectl_scale_sets_the_number_of_engines(job: str, jobs: Jobs, kubectl: Kubectl):
    jobs.write_status(job, full_status().to_object())
    kubectl.run("scale", f"grpojob/{job}", "--replicas=5")
    assert jobs.get(job)["spec"]["rollout"]["replicas"] == 5
    scale = jobs.scale(job)
    assert scale["spec"]["replicas"] == 5
    assert scale["status"] == {"replicas": 2, "selector": "a=b"}
    said = kubectl.refusal_of("scale", f"grpojob/{job}", "--replicas=0")
    assert "spec.rollout.replicas in body should be greater than or equal to 1" in said


def test_kubectl_explain_tells_what_the_docstrings_tell(kubectl: Kubectl):
    def explained(field: str) -> str:
        return " ".join(kubectl.run("explain", f"grpojob.spec.{field}", check=False).split())

    wait_until(
        lambda: bool(explained("algorithm.groupSize")),
        timeout_seconds=30,
        poll_seconds=0.3,
        what="the schema of GRPOJobs to be published",
    )
    told = explained("algorithm.groupSize")
    assert "How many completions are sampled for each prompt." in told
    # a string with a rule, and no enum: its names are in the text
    told = explained("weightSync.backend")
    assert [backend.value for backend in WeightSyncBackend if f"`{backend}`" not in told] == []


def test_helm_refuses_a_release_that_does_not_leave_out_a_crd_which_is_there(kubeconfig: Path):
    """In the words that the guide of installing quotes."""
    chart = str(Path(__file__).parents[2] / "charts" / "grpo-operator")
    command = [str(program_path("helm")), "install", "second", chart, "--kubeconfig", str(kubeconfig)]

    def said(*more: str) -> str:
        tried = [*command, "--dry-run=server", *more]
        return subprocess.run(tried, capture_output=True, text=True, check=False).stderr

    assert "cannot be imported into the current release: invalid ownership metadata" in said()
    assert said("--set", "crd.install=false") == ""


def test_the_crd_can_be_applied_again(kubectl: Kubectl):
    path = Path(__file__).parents[2] / "crds" / "grpojobs.yaml"
    before = kubectl.get("crd", "grpojobs.grpo.dev")["metadata"]["resourceVersion"]
    kubectl.run("apply", "--server-side", "-f", str(path))
    assert kubectl.get("crd", "grpojobs.grpo.dev")["metadata"]["resourceVersion"] == before
