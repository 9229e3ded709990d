"""An operator meets a CRD that is older than it: it leads its jobs and says on them what is missing."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .api_server import Kubectl
from .conftest import CRD
from .operator_harness import FakeKubelet, Namespace, OperatorProcess, running_job, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver
SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties"
LACKING = {"spec": "stallTimeoutSeconds", "status": "checkpointStep"}
NOTE = "lacks spec.stallTimeoutSeconds, status.checkpointStep"


@pytest.fixture
def older_crd(kubectl: Kubectl, namespace: Namespace) -> Iterator[Callable[[], None]]:
    """The CRD of a release that lacks a field in spec and in status; a call installs the operator's own."""

    def serves(number: int) -> Callable[[], bool]:
        def is_taken_up() -> bool:
            found = json.loads(kubectl.run("get", "--raw", "/openapi/v3/apis/grpo.dev/v1alpha1"))
            job = found["components"]["schemas"]["dev.grpo.v1alpha1.GRPOJob"]["properties"]
            return sum(name in job[part]["properties"] for part, name in LACKING.items()) == number

        return is_taken_up

    def install() -> None:
        kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        wait_until("the CRD is taken up", serves(2))

    rules = json.loads(kubectl.run("get", "crd", "grpojobs.grpo.dev", "-o", "json"))
    spec = rules["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    kept = [rule for rule in spec["x-kubernetes-validations"] if LACKING["spec"] not in rule["rule"]]
    change: list[dict[str, Any]] = [
        {"op": "remove", "path": f"{SCHEMA}/{part}/properties/{name}"} for part, name in LACKING.items()
    ]
    change.append({"op": "replace", "path": f"{SCHEMA}/spec/x-kubernetes-validations", "value": kept})
    kubectl.run("patch", "crd", "grpojobs.grpo.dev", "--type=json", "-p", json.dumps(change))
    wait_until("the older CRD is taken up", serves(0))
    yield install
    install()


def test_a_job_runs_under_an_older_crd_and_says_which_one_is_needed(
    older_crd: Callable[[], None], namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1")
    (trainer,) = running_job(namespace, kubelet)
    ready = namespace.condition("Ready")
    assert NOTE in ready["message"] and "crd.install=true" in ready["message"]
    assert ready["reason"] == "TrainerStarting"
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    older_crd()
    wait_until("nothing is lacking", lambda: NOTE not in namespace.condition("Ready")["message"])


def test_what_the_older_crd_drops_from_a_spec_is_said_on_the_job(
    older_crd: Callable[[], None], namespace: Namespace, operator: OperatorProcess
):
    namespace.apply_job(stallTimeoutSeconds=60)
    assert "stallTimeoutSeconds" not in namespace.job()["spec"]
    operator.start()
    wait_until("it is said", lambda: NOTE in namespace.condition("Ready").get("message", ""))
    assert namespace.condition("Finished")["status"] == "False"
