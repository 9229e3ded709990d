"""An operator meets a job that a newer release wrote: it waits, and the reason is on the object."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import ApiException

from grpo_api.v1alpha1.job import GRPOJob

from .api_server import Kubectl
from .fake_kubelet import FakeKubelet, running_job
from .operator_harness import Namespace, OperatorProcess, wait_until

pytestmark = pytest.mark.apiserver


@pytest.fixture
def newer_crd(kubectl: Kubectl) -> Iterator[None]:
    """The CRD of a release that has one more field in spec and in status."""
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties"
    paths = [f"{schema}/{part}/properties/futureField" for part in ("spec", "status")]

    def patch(operation: dict[str, Any]) -> None:
        change = json.dumps([operation | {"path": path} for path in paths])
        kubectl.run("patch", "crd", "grpojobs.grpo.dev", "--type=json", "-p", change)

    patch({"op": "add", "value": {"type": "string"}})
    yield
    patch({"op": "remove"})


def has_future_field(namespace: Namespace, name: str, part: str) -> bool:
    """Write it, and see whether the API server kept it: it takes a new schema up in its own time."""
    change = {part: {"futureField": "x"}}
    if part == "spec":
        namespace.patch_job(change, name)
    else:
        namespace.objects.patch_namespaced_custom_object_status(
            "grpo.dev", "v1alpha1", namespace.name, "grpojobs", name, change
        )
    return "futureField" in namespace.job(name).get(part, {})


@pytest.mark.usefixtures("newer_crd")
def test_a_job_newer_than_its_operator_waits_with_the_reason_on_it(
    namespace: Namespace, operator: OperatorProcess
):
    namespace.apply_job()
    wait_until("the schema is taken up", lambda: has_future_field(namespace, "copy", "spec"))
    operator.start()
    wait_until("it is said", lambda: namespace.condition("Ready").get("reason") == "SchemaSkew")
    assert "spec.futureField" in namespace.condition("Ready")["message"]
    assert (namespace.pods("trainer"), namespace.condition("Finished")["status"]) == ([], "False")
    namespace.apply_job("plain")  # asks for nothing new
    wait_until("it is started", lambda: namespace.status("plain").get("attempt") == 1)
    namespace.patch_job({"spec": {"futureField": None}})
    wait_until("the other starts by itself", lambda: namespace.status().get("attempt") == 1)


@pytest.fixture
def looser_crd(kubectl: Kubectl) -> Iterator[None]:
    """The CRD of a release that allows more restarts than this one."""
    path = (
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/failurePolicy/properties"
        "/maxRestarts/maximum"
    )

    def patch(maximum: int) -> None:
        change = [{"op": "replace", "path": path, "value": maximum}]
        kubectl.run("patch", "crd", "grpojobs.grpo.dev", "--type=json", "-p", json.dumps(change))

    known = GRPOJob.model_json_schema()["$defs"]["FailurePolicySpec"]["properties"]["maxRestarts"]["maximum"]
    patch(known * 10)
    yield
    patch(known)


@pytest.mark.usefixtures("looser_crd")
def test_a_job_within_a_bound_that_only_the_newer_crd_allows_waits_too(
    namespace: Namespace, operator: OperatorProcess
):
    def is_accepted() -> bool:
        try:
            namespace.apply_job(failurePolicy={"maxRestarts": 5_000})
        except ApiException:
            return False
        return True

    wait_until("the schema is taken up", is_accepted)
    operator.start()
    wait_until("it is said", lambda: namespace.condition("Ready").get("reason") == "SchemaSkew")
    assert "spec.failurePolicy.maxRestarts" in namespace.condition("Ready")["message"]
    assert (namespace.pods("trainer"), namespace.condition("Finished")["status"]) == ([], "False")
    namespace.patch_job({"spec": {"failurePolicy": {"maxRestarts": 3}}})  # this field may change
    wait_until("it starts by itself", lambda: namespace.status().get("attempt") == 1)


@pytest.mark.usefixtures("newer_crd")
def test_a_status_of_a_newer_operator_is_left_as_it_is_but_for_the_condition_that_says_so(
    namespace: Namespace, operator: OperatorProcess, kubelet: FakeKubelet
):
    operator.start()
    running_job(namespace, kubelet)
    operator.kill()
    wait_until("the schema is taken up", lambda: has_future_field(namespace, "copy", "status"))
    before = namespace.status()
    operator.start("--resync-seconds", "1")
    wait_until("it is said", lambda: namespace.condition("Ready").get("reason") == "SchemaSkew")
    after = namespace.status()
    assert {c["type"] for c in after["conditions"]} == {c["type"] for c in before["conditions"]}
    assert {k: v for k, v in after.items() if k != "conditions"} == {
        k: v for k, v in before.items() if k != "conditions"
    }
    assert len(namespace.pods("rollout")) == 2
    operator.kill()
    namespace.objects.patch_namespaced_custom_object_status(
        "grpo.dev", "v1alpha1", namespace.name, "grpojobs", "copy", {"status": {"futureField": None}}
    )
    operator.start()
    wait_until("it works again", lambda: namespace.condition("Ready").get("reason") != "SchemaSkew")
