"""A new job with other resources continues from a checkpoint of another one, on real pods."""

import pytest

from grpo_demo.follow import condition
from grpo_runtime.report.metrics_file import METRICS_FILE, read_metrics
from grpo_scenarios.namespace import Namespace, copy_job, volume_claim

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

FIRST, NEXT, CLAIM = "first", "next", "runs"


def test_a_new_job_with_more_memory_and_steps_goes_on_from_another_one(namespace: Namespace) -> None:
    first = copy_job(FIRST, claim=CLAIM, algorithm={"steps": 3})
    # on the same claim, in a folder of its own
    following = copy_job(NEXT, claim=CLAIM, algorithm={"steps": 5}, resumeFrom={"job": FIRST})
    memory = {"limits": {"memory": "5Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}
    following["spec"]["trainer"] = {"processesPerNode": 1, "resources": memory}
    namespace.apply(volume_claim(CLAIM), following)
    namespace.wait_until(
        lambda: why_not_ready(namespace) == "WaitingForResumedJob", "the wait", timeout_seconds=30
    )
    namespace.apply(first)
    assert namespace.wait_for_finish(FIRST)["step"] == 3
    status = namespace.wait_for_finish(NEXT)
    assert condition(namespace.job(NEXT), "Complete") == "True", namespace.describe()
    assert (status["step"], status["restarts"], status["resumedFrom"]["step"]) == (5, 0, 3)

    uids = {job: namespace.job(job)["metadata"]["uid"] for job in (FIRST, NEXT)}
    assert status["resumedFrom"]["jobUid"] == uids[FIRST]
    folders = {folder.name.rpartition("-")[0]: folder for folder in namespace.claim_folder(CLAIM).iterdir()}
    assert set(folders) == {FIRST, NEXT}
    assert status["resumedFrom"]["source"] == f"pvc://{CLAIM}/{folders[FIRST].name}"
    assert [record.step for record in read_metrics(folders[NEXT] / METRICS_FILE)] == [4, 5]
    events = namespace.kubectl("get", "events", "--field-selector", "reason=Resumed", "--output=name")
    assert len(events.splitlines()) == 1


def test_the_weights_of_a_deleted_job_begin_another_run(namespace: Namespace) -> None:
    place = namespace.status(NEXT)["resumedFrom"]["source"]
    namespace.kubectl("delete", "grpojob", FIRST)
    resume = {"source": f"{place}/checkpoints/step-000003", "load": "Weights"}
    namespace.apply(copy_job("weights", algorithm={"steps": 2}, resumeFrom=resume))
    status = namespace.wait_for_finish("weights")
    assert condition(namespace.job("weights"), "Complete") == "True", namespace.describe()
    assert (status["step"], status["resumedFrom"]["step"]) == (2, 3)


def why_not_ready(namespace: Namespace) -> str:
    found = namespace.status(NEXT).get("conditions", ())
    return next((each["reason"] for each in found if each["type"] == "Ready"), "")
