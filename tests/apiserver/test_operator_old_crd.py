"""An operator meets a CRD that is older than it: it leads its jobs and says on them what is missing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .api_server import Kubectl
from .conftest import CRD
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver
SCHEMA = "/spec/versions/0/schema/openAPIV3Schema/properties"
LACKING = {"spec": "stallTimeoutSeconds", "status": "checkpointStep"}
NOTE = "lacks spec.stallTimeoutSeconds, status.checkpointStep"


class ServedCrd:
    """The CRD that the API server has."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    def take_fields_away(self) -> None:
        """Install the CRD of a release that lacks a field in spec and in status."""
        rules = json.loads(self._kubectl.run("get", "crd", "grpojobs.grpo.dev", "-o", "json"))
        spec = rules["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        kept = [rule for rule in spec["x-kubernetes-validations"] if LACKING["spec"] not in rule["rule"]]
        change: list[dict[str, Any]] = [
            {"op": "remove", "path": f"{SCHEMA}/{part}/properties/{name}"} for part, name in LACKING.items()
        ]
        change.append({"op": "replace", "path": f"{SCHEMA}/spec/x-kubernetes-validations", "value": kept})
        self._kubectl.run("patch", "crd", "grpojobs.grpo.dev", "--type=json", "-p", json.dumps(change))
        wait_until("the older CRD is taken up", lambda: self._num_served() == 0, poll_seconds=0.3)

    def install(self) -> None:
        """Install the operator's own."""
        self._kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        wait_until("the CRD is taken up", lambda: self._num_served() == len(LACKING), poll_seconds=0.3)

    def _num_served(self) -> int:
        found = json.loads(self._kubectl.run("get", "--raw", "/openapi/v3/apis/grpo.dev/v1alpha1"))
        job = found["components"]["schemas"]["dev.grpo.v1alpha1.GRPOJob"]["properties"]
        return sum(name in job[part]["properties"] for part, name in LACKING.items())


@pytest.fixture
def crd(kubectl: Kubectl, namespace: Namespace) -> Iterator[ServedCrd]:
    served = ServedCrd(kubectl)
    yield served
    served.install()


@pytest.fixture
def older_crd(crd: ServedCrd) -> ServedCrd:
    crd.take_fields_away()
    return crd


def test_a_job_runs_under_an_older_crd_and_says_which_one_is_needed(
    older_crd: ServedCrd, namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1")
    (trainer,) = running_job(namespace, kubelet)
    ready = namespace.condition("Ready")
    assert NOTE in ready["message"] and "crd.install=true" in ready["message"]
    assert ready["reason"] == "TrainerStarting"
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    older_crd.install()
    wait_until("nothing is lacking", lambda: NOTE not in namespace.condition("Ready")["message"])


def test_what_the_older_crd_drops_from_a_spec_is_said_on_the_job(
    older_crd: ServedCrd, namespace: Namespace, operator: OperatorProcess
):
    namespace.apply_job(stallTimeoutSeconds=60)
    assert "stallTimeoutSeconds" not in namespace.job()["spec"]
    operator.start()
    wait_until("it is said", lambda: NOTE in namespace.condition("Ready").get("message", ""))
    assert namespace.condition("Finished")["status"] == "False"


def test_a_job_goes_on_when_an_older_crd_is_installed_over_the_operators_own(
    crd: ServedCrd, namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start("--resync-seconds", "1")
    (trainer,) = running_job(namespace, kubelet)
    namespace.patch_status({"checkpointStep": 3})
    crd.take_fields_away()
    wait_until("it is said", lambda: NOTE in namespace.condition("Ready")["message"])
    kubelet.end(trainer, exit_code=1, message="boom")
    wait_for_pods(namespace, "trainer", 1, attempt=2)
    assert "checkpointStep" not in namespace.status()
