"""A job that is suspended in the middle of its steps continues to the bits of one that nobody disturbed, on
real pods."""

import json
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, Object, copy_job, volume_claim
from grpo_scenarios.pace import slow_down

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB, WHOLE, STEPS = "copy", "whole", 8
ALONE = {"maxNumSeqs": 1}
"""Each engine samples one completion at a time: a logprob's last bits depend on what is computed with it."""
COUNTS = ("restarts", "disruptions", "failuresSinceProgress", "disruptionsSinceProgress")


def job_called(name: str) -> list[Object]:
    """A job that saves when it is asked to stop and at its end only, with its claim and its pace."""
    job = copy_job(
        name,
        claim=name,
        algorithm={"steps": STEPS, "promptsPerStep": 4, "groupSize": 4},
        engine=ALONE,
        checkpoint={"everySteps": 1000},
    )
    return [slow_down(job, seconds=1.0), volume_claim(name), job]


def suspend(namespace: Namespace, value: bool) -> None:
    change = json.dumps({"spec": {"suspend": value}})
    namespace.kubectl("patch", "grpojob", JOB, "--type=merge", f"--patch={change}")


def digests(namespace: Namespace, claim: str) -> dict[int, float]:
    """What identifies the weights after each step."""
    return {each.step: each.values["journal/weights_checksum"] for each in namespace.metrics(claim)}


def trained_model(namespace: Namespace, claim: str) -> bytes:
    (path,) = (namespace.output_folder(claim) / "model").glob("*.safetensors")
    return Path(path).read_bytes()


def test_a_suspended_job_has_a_checkpoint_and_no_pods(namespace: Namespace) -> None:
    namespace.apply(*job_called(JOB))
    namespace.wait_for_step(JOB, 2)
    suspend(namespace, True)
    namespace.kubectl("wait", "--for=condition=Suspended", f"grpojob/{JOB}", "--timeout=240s")
    status = namespace.status(JOB)
    assert namespace.pods(f"grpo.dev/job={JOB}") == []
    assert (status["phase"], status["attempt"]) == ("Suspended", 1)
    assert 2 <= status["step"] == status["checkpointStep"] == status["highestCheckpointStep"] < STEPS
    said = namespace.kubectl("get", "grpojob", JOB)
    assert "Suspended" in said and "0/0" in said


def test_it_continues_uncounted_to_the_same_weights_as_a_job_that_was_not_suspended(
    namespace: Namespace,
) -> None:
    saved = namespace.status(JOB)["checkpointStep"]
    suspend(namespace, False)
    status = namespace.wait_for_finish(JOB)
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    assert (status["attempt"], [status.get(name, 0) for name in COUNTS]) == (2, [0, 0, 0, 0])
    attempts = {each.step: each.attempt for each in namespace.metrics(JOB)}
    assert attempts == {step: 1 if step <= saved else 2 for step in range(1, STEPS + 1)}

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
