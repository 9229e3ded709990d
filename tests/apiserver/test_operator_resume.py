"""A job that begins with a checkpoint of another one, on a real API server."""

import json
from typing import Any

import pytest

from .fake_kubelet import FakeKubelet
from .operator_harness import Namespace, OperatorProcess, termination_message, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

SECONDS = 60.0
"""A job that waits for another one looks every ten seconds."""


def claims_of(pod: Any) -> dict[str, bool]:
    """The claims of a pod, and whether they are mounted read-only as a whole."""
    found = [volume.persistent_volume_claim for volume in pod.spec.volumes]
    return {claim.claim_name: bool(claim.read_only) for claim in found if claim is not None}


def test_a_job_waits_for_the_end_of_the_one_that_it_resumes_from_and_reads_its_folder(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job("next", resumeFrom={"job": "first"}, checkpoint={"claimName": "own"})
    wait_until(
        "it says that there is no such job",
        lambda: "there is no GRPOJob first" in namespace.condition("Ready", "next").get("message", ""),
    )
    first = namespace.apply_job("first", checkpoint={"claimName": "runs"})
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    wait_until(
        "it says what it waits for",
        lambda: "GRPOJob first has not ended" in namespace.condition("Ready", "next")["message"],
        seconds=SECONDS,
    )
    assert namespace.condition("Ready", "next")["reason"] == "WaitingForResumedJob"
    assert namespace.pods_of("next", "trainer") == []

    sentence = "rewards[0].function: no module named nowhere: install it into spec.image"
    kubelet.end(trainer, exit_code=40, message=termination_message(40, "UserError", sentence))
    (resumed,) = wait_until("it has begun", lambda: namespace.pods_of("next", "trainer"), seconds=SECONDS)
    place = namespace.status("next")["resumedFrom"]
    folder = trainer.metadata.name.removesuffix("-trainer-a1-0")
    uid = first["metadata"]["uid"]
    assert place == {"source": f"pvc://runs/{folder}", "job": "first", "jobUid": uid}
    assert claims_of(resumed) == {"own": False, "runs": True}

    # what the pods read stays when the other job goes
    namespace.delete_job("first")
    configs = namespace.core.list_namespaced_config_map(
        namespace.name, label_selector="grpo.dev/job=next"
    ).items
    run = json.loads(configs[0].data["run.json"])
    assert run["resumeFrom"] == {"source": place["source"], "load": "Checkpoint"}


@pytest.mark.matrix
def test_a_running_job_can_be_deleted_to_let_the_next_one_begin(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    namespace.apply_job("first", checkpoint={"claimName": "runs"})
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    kubelet.bind(trainer)
    namespace.apply_job("next", resumeFrom={"job": "first"})
    wait_until("its place is known", lambda: "resumedFrom" in namespace.status("next"))
    namespace.delete_job("first")
    namespace.core.delete_namespaced_pod(trainer.metadata.name, namespace.name)
    wait_until(
        "its pod must end first",
        lambda: f"trainer pod {trainer.metadata.name}" in namespace.condition("Ready", "next")["message"],
        seconds=SECONDS,
    )
    kubelet.finish(trainer.metadata.name)
    wait_until("it has begun", lambda: namespace.pods_of("next", "trainer"), seconds=SECONDS)


def test_a_job_without_a_claim_fails_the_one_that_would_resume_from_it(
    namespace: Namespace, operator: OperatorProcess
):
    operator.start()
    namespace.apply_job("first")
    namespace.apply_job("next", resumeFrom={"job": "first"})
    wait_until("it has failed", lambda: namespace.condition("Failed", "next").get("status") == "True")
    assert namespace.condition("Failed", "next")["reason"] == "NothingToResume"
    assert namespace.status("next")["phase"] == "Failed"
    assert namespace.pods_of("next", "trainer") == []
