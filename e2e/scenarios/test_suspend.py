"""A job that is suspended in the middle of its steps continues to the bits of one that nobody disturbed, on
real pods."""

import json

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.disturbed import NUM_STEPS, attempt_and_counts, digests, long_job, trained_model
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, WHOLE = "copy", "whole"


def job_called(name: str) -> list[Object]:
    """A job with its claim and its pace."""
    job = long_job(name)
    return [slow_down(job, seconds=1.0), volume_claim(name), job]


def suspend(namespace: Namespace, value: bool) -> None:
    change = json.dumps({"spec": {"suspend": value}})
    namespace.kubectl("patch", "grpojob", JOB, "--type=merge", f"--patch={change}")


def test_a_suspended_job_has_a_checkpoint_and_no_pods(namespace: Namespace) -> None:
    namespace.apply(*job_called(JOB))
    namespace.wait_for_step(JOB, 2)
    suspend(namespace, True)
    namespace.kubectl("wait", "--for=condition=Suspended", f"grpojob/{JOB}", "--timeout=240s")
    status = namespace.status(JOB)
    assert namespace.pods(f"grpo.dev/job={JOB}") == []
    assert (status["phase"], status["attempt"]) == ("Suspended", 1)
    assert 2 <= status["step"] == status["checkpointStep"] == status["highestCheckpointStep"] < NUM_STEPS
    said = namespace.kubectl("get", "grpojob", JOB)
    assert "Suspended" in said and "0/0" in said


def test_it_continues_uncounted_to_the_same_weights_as_a_job_that_was_not_suspended(
    namespace: Namespace,
) -> None:
    saved = namespace.status(JOB)["checkpointStep"]
    suspend(namespace, False)
    status = namespace.wait_for_finish(JOB)
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    assert attempt_and_counts(status) == (2, {})
    attempts = {each.step: each.attempt for each in namespace.metrics(JOB)}
    assert attempts == {step: 1 if step <= saved else 2 for step in range(1, NUM_STEPS + 1)}

    namespace.apply(*job_called(WHOLE))
    namespace.wait_for_finish(WHOLE)
    assert digests(namespace, JOB) == digests(namespace, WHOLE)
    assert trained_model(namespace, JOB) == trained_model(namespace, WHOLE)


def test_a_job_that_is_created_suspended_has_no_children(namespace: Namespace) -> None:
    job = copy_job("later", algorithm={"steps": 1})
    job["spec"]["suspend"] = True
    namespace.apply(job)
    namespace.kubectl("wait", "--for=condition=Suspended", "grpojob/later", "--timeout=60s")
    assert namespace.children("later") == {}
    assert namespace.status("later").get("attempt", 0) == 0
