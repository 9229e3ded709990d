"""The snapshot of a job that a plan is made from."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from grpo_api.contract.environment import Role
from grpo_api.v1alpha1.spec import Gang
from grpo_api.v1alpha1.status import Phase
from grpo_operator.children.gangs import GANG_SCHEDULERS, pod_group
from grpo_operator.children.workloads import QueueAndPriority, job_workload
from grpo_operator.cluster.kinds import JOBS, PODS, WORKLOADS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods, job_view, observe
from grpo_operator.observe.observed import OtherJob, PodSetView, Remembered
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.plan.termination import explain_termination

from .controlled_job import KEY, a_job, pod_names, run_pods, status_of
from .fake_cluster import NOW, UID, run, spec

STORED = {"uid": "u1", "resourceVersion": "7", "generation": 1}


def remembered(cache: Cache, state: ProcessState) -> Remembered:
    """What is remembered once the job in the cache has been looked at."""
    found = job_and_pods(cache, KEY)
    assert found is not None
    return state.remember_pods(KEY, found, now=NOW)


async def test_a_pod_of_an_earlier_attempt_that_stays_for_its_logs_is_no_failure_of_the_current_one(
    controller, client, cache, state
):
    await controller.reconcile(KEY)
    run_pods(client)
    (failed,) = [pod for pod in client.objects(PODS) if "-trainer-a1-" in pod["metadata"]["name"]]
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    client.put(PODS, failed | {"status": {"phase": "Failed", "containerStatuses": [ended]}})
    client.show(cache)
    before = remembered(cache, state)
    assert before.failing_since == NOW
    await controller.reconcile(KEY)
    assert (status_of(client)["attempt"], len(pod_names(client, "trainer"))) == (2, 2)
    after = remembered(cache, state)
    assert after.failing_since is None


@pytest.mark.parametrize(
    ("image", "named_by"),
    [
        (None, "is the operator's --runtime-image (runtimeImage of its chart)"),
        ("example.test/mine:1", "is spec.image"),
    ],
)
async def test_an_image_that_is_missing_or_no_runtime_image_is_blamed_on_what_names_it(
    controller, client, cache, image: str | None, named_by: str
):
    client.put(JOBS, a_job(spec=spec(image=image).to_object()))
    client.show(cache)
    await controller.reconcile(KEY)
    (pod,) = [pod for pod in client.objects(PODS) if "-trainer-a1-" in pod["metadata"]["name"]]
    waits = {"name": "trainer", "image": "nope:1", "state": {"waiting": {"reason": "ErrImagePull"}}}
    refused = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}
    waits["lastState"] = refused
    client.put(PODS, pod | {"status": {"phase": "Pending", "containerStatuses": [waits]}})
    client.show(cache)
    found = job_and_pods(cache, KEY)
    assert found is not None
    view = found.trainers[0]
    assert view.start_problem is not None and view.last_termination is not None
    assert f"{named_by} right" in view.start_problem.message
    assert f"{named_by} a runtime image?" in explain_termination(view.last_termination).message


@pytest.mark.parametrize(("suspend", "found"), [(True, True), (False, False), (None, None), ("no", None)])
def test_suspend_is_read_also_where_the_rest_of_the_spec_cannot_be(suspend: object, found: bool | None):
    given = {"newer": 1} | ({} if suspend is None else {"suspend": suspend})
    job = a_job(spec=spec().to_object() | given)
    view = job_view(job | {"metadata": job["metadata"] | {"resourceVersion": "1"}})
    assert (view.spec, view.suspend) == (None, found)


def test_the_workloads_of_a_job_are_found_although_it_does_not_control_them():
    cache, snapshot = Cache(), run()
    made = job_workload(snapshot, QueueAndPriority("team")).body
    status = {
        "admission": {"podSetAssignments": [{"name": "rollout", "count": 1, "flavors": {"cpu": "gpu"}}]},
        "reclaimablePods": [{"name": "rollout", "count": 1}],
        "conditions": [{"type": "Admitted", "status": "True"}],
    }
    cache.put(JOBS, a_job() | {"metadata": a_job()["metadata"] | {"resourceVersion": "1"}})
    cache.put(WORKLOADS, {**made, "metadata": {**made["metadata"], **STORED}, "status": status})
    job = job_and_pods(cache, KEY)
    assert job is not None
    (found,) = observe(cache, job, Remembered()).workloads.values()
    assert (found.name, found.queue, found.is_admitted) == (snapshot.names.workload, "team", True)
    assert found.pod_sets["rollout"] == PodSetView(declared=2, count=1, flavors=("gpu",))
    assert found.pod_sets["trainer"].count == 1


def test_no_other_object_is_a_jobs_that_does_not_control_it():
    cache = Cache()
    owners = job_workload(run(), QueueAndPriority("team")).body["metadata"]["ownerReferences"]
    meta = {"name": "copy-1", "namespace": "default", "ownerReferences": owners, **STORED}
    cache.put(PODS, {"kind": "Pod", "metadata": meta, "spec": {"containers": []}})
    assert cache.pods(("default", UID)) == ()


@pytest.mark.parametrize(
    ("annotation", "woken_at"),
    [("2026-11-21T12:00:00Z", NOW), ("yesterday", None), ("2026-11-21T12:00:00", None), (None, None)],
)
def test_the_pod_groups_of_a_job_are_found_whatever_somebody_wrote_on_them(
    cache: Cache, state: ProcessState, annotation: str | None, woken_at: datetime | None
):
    scheduler = GANG_SCHEDULERS[Gang.COSCHEDULING]
    made = pod_group(run(), scheduler, name="copy-trainer-a1", role=Role.TRAINER, template=None).body
    made["metadata"] |= {"uid": "u1", "resourceVersion": "500"}
    made["metadata"] |= {"annotations": {"grpo.dev/woken-at": annotation}} if annotation else {}
    cache.put(scheduler.kind, made)
    found = job_and_pods(cache, KEY)
    assert found is not None
    (group,) = observe(cache, found, remembered(cache, state)).pod_groups.values()
    assert (group.kind, group.name, group.uid) == (scheduler.kind, "copy-trainer-a1", "u1")
    assert (group.woken_at, group.is_deleting) == (woken_at, False)


OTHER_UID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


def cache_with(*jobs: dict[str, Any]) -> Cache:
    cache = Cache()
    for job in jobs:
        job["metadata"]["resourceVersion"] = str(len(cache.job_keys()) + 1)
        cache.put(JOBS, job)
    return cache


def resuming_job(**status: Any) -> dict[str, Any]:
    return a_job(status=status, spec=spec(resumeFrom={"job": "first"}).to_object())


def first_job(*, uid: str = OTHER_UID, **more: Any) -> dict[str, Any]:
    job = a_job(spec=spec(checkpoint={"claimName": "runs"}).to_object(), **more)
    return job | {"metadata": {"name": "first", "namespace": "default", "uid": uid}}


def pod_of_first(phase: str) -> dict[str, Any]:
    owner = {"kind": "GRPOJob", "name": "first", "uid": OTHER_UID, "controller": True}
    meta = {"name": "first-1-trainer-a1-0", "namespace": "default", "uid": "p", "resourceVersion": "9"}
    owned = meta | {"ownerReferences": [owner | {"apiVersion": "grpo.dev/v1alpha1"}]}
    containers = [{"name": "trainer", "image": "i"}]
    return {"metadata": owned, "spec": {"containers": containers}, "status": {"phase": phase}}


def other_job_in(cache: Cache, state: ProcessState) -> OtherJob | None:
    found = job_and_pods(cache, KEY)
    assert found is not None
    return observe(cache, found, state.remember_pods(KEY, found, now=NOW)).other_job


def test_the_job_that_is_resumed_is_the_one_of_its_name(state):
    assert other_job_in(cache_with(resuming_job()), state) is None
    cache = cache_with(resuming_job(), first_job(status={"phase": "Failed", "step": 9}))
    found = OtherJob(OTHER_UID, is_there=True, claim_name="runs", phase=Phase.FAILED)
    assert other_job_in(cache, state) == found
    cache.put(PODS, pod_of_first("Running"))
    assert other_job_in(cache, state) == replace(found, living_trainer="first-1-trainer-a1-0")
    cache.put(
        PODS, pod_of_first("Failed") | {"metadata": pod_of_first("")["metadata"] | {"resourceVersion": "10"}}
    )
    assert other_job_in(cache, state) == found


def test_a_new_job_of_that_name_is_not_the_one_that_is_resumed(state):
    known = {"source": "pvc://runs/first", "job": "first", "jobUid": OTHER_UID}
    cache = cache_with(resuming_job(resumedFrom=known), first_job(uid="another"))
    cache.put(PODS, pod_of_first("Running"))
    assert other_job_in(cache, state) == OtherJob(
        OTHER_UID, is_there=False, living_trainer="first-1-trainer-a1-0"
    )


def test_a_job_that_has_started_looks_at_no_other(state):
    assert other_job_in(cache_with(resuming_job(attempt=1), first_job()), state) is None


def test_a_resumed_job_of_another_release_is_told_as_it_is(state):
    unknown = first_job()
    unknown["spec"]["newer"] = 1
    found = other_job_in(cache_with(resuming_job(), unknown), state)
    assert found is not None and (found.claim_name, "spec.newer" in found.problem) == (None, True)
    found = other_job_in(cache_with(resuming_job(), first_job(status={"phase": "Newer"})), state)
    assert found is not None and "run the newer release" in found.problem
