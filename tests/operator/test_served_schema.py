"""The CRD of the cluster is older than the operator: the status is written without what it lacks, the job is
led on, and it says which CRD is missing."""

from copy import deepcopy
from typing import Any

import pytest

from grpo_api.v1alpha1.status import Condition, ConditionStatus, ConditionType, GRPOJobStatus
from grpo_operator.children.names import Names
from grpo_operator.cluster.kinds import PODS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.served_schema import EVERYTHING, compare

from .controlled_job import KEY, condition_of, controller_of, pod_names, run_pods, status_of
from .fake_api_server import FakeApiServer, job_schema
from .fake_cluster import NOW, UID

LACKING = (
    "spec.stallTimeoutSeconds",
    "spec.rewards[].pattern",
    "status.checkpointStep",
    "status.rollout.current",
)


def without(*paths: str) -> dict[str, Any]:
    """The schema of a CRD that lacks these fields."""
    schema = job_schema()
    for path in paths:
        at, (*parents, name) = schema, path.split(".")
        for parent in parents:
            at = at["properties"][parent.removesuffix("[]")]
            at = at["items"] if parent.endswith("[]") else at
        del at["properties"][name]
    return schema


def test_our_own_crd_lacks_nothing_and_nothing_is_known_where_no_schema_is_shown():
    assert compare(job_schema(), release="9") == EVERYTHING
    assert compare(None, release="9") == EVERYTHING
    assert compare({"type": "object"}, release="9") == EVERYTHING


def test_the_sentence_names_every_field_that_is_lacking_the_release_and_two_ways_to_install_it():
    problem = compare(without(*LACKING), release="0.2.0").problem
    assert [path for path in LACKING if path not in problem] == []
    assert "release (0.2.0)" in problem
    assert "crd.install=true" in problem and "kubectl apply --server-side -f crds/grpojobs.yaml" in problem


def test_a_section_that_is_lacking_is_named_and_not_its_fields():
    problem = compare(without("status.rollout"), release="9").problem
    assert "lacks status.rollout, which" in problem


def test_a_crd_that_lacks_much_is_described_in_a_sentence_that_a_condition_can_hold():
    fields = [f"status.{name}" for name in job_schema()["properties"]["status"]["properties"]]
    problem = compare(without(*fields), release="9").problem
    assert f"and {len(fields) - 8} more" in problem and len(problem) < 600


def test_a_status_is_written_without_what_is_lacking_and_is_read_back_as_it_is_compared():
    schema = compare(without("status.checkpointStep", "status.rollout.current"), release="9")
    status = GRPOJobStatus(attempt=2, checkpoint_step=5)
    written = schema.fit_object(status, shown={})
    assert "checkpointStep" not in written and "current" not in written["rollout"]
    assert written["attempt"] == 2 and written["rollout"]["summary"] == ""
    assert GRPOJobStatus.from_object(written) == schema.fit(status, shown={})


def test_a_condition_and_a_phase_that_the_crd_does_not_know_are_left_out():
    served = job_schema()
    status = served["properties"]["status"]["properties"]
    status["conditions"]["items"]["properties"]["type"]["enum"].remove("Restarting")
    status["phase"]["enum"].remove("Pending")
    found = compare(served, release="9")
    assert "status.phase Pending, status.conditions[].type Restarting" in found.problem
    conditions = tuple(
        Condition(
            type=kind,
            status=ConditionStatus.TRUE,
            reason="A",
            last_transition_time=NOW,
            observed_generation=1,
        )
        for kind in (ConditionType.READY, ConditionType.RESTARTING)
    )
    written = found.fit_object(GRPOJobStatus(conditions=conditions), shown={})
    assert [each["type"] for each in written["conditions"]] == ["Ready"]
    assert "phase" not in written


@pytest.fixture
def old(client: FakeApiServer, cache: Cache) -> Cache:
    """What an operator knows of a cluster whose CRD lacks fields of the status."""
    client.schema_of_jobs = without("status.checkpointStep", "status.rollout.current")
    cache.served_schema = compare(deepcopy(client.schema_of_jobs), release="9")
    return cache


async def look(controller: Any, *, times: int = 3) -> None:
    for _ in range(times):
        await controller.reconcile(KEY)


async def test_a_job_is_led_as_ever_under_an_older_crd_and_says_so_without_flapping(client, old):
    controller = controller_of(client, old)
    await look(controller)
    ready = condition_of(client, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodsStarting")
    assert "lacks status.checkpointStep, status.rollout.current" in ready["message"]
    run_pods(client)
    client.show(old)
    await look(controller)
    assert status_of(client)["phase"] == "Running"
    assert condition_of(client, "Ready")["message"].count("the GRPOJob CRD is older") == 1
    num_writes = client.num_writes
    await look(controller)
    assert client.num_writes == num_writes
    client.remove(PODS, Names.of(job="copy", uid=UID).trainer(attempt=1, index=0))
    client.show(old)
    await look(controller)
    assert (status_of(client)["attempt"], len(pod_names(client))) == (2, 3)


async def test_once_the_crd_is_installed_the_job_says_nothing_of_it_any_more(client, old):
    controller = controller_of(client, old)
    await look(controller)
    run_pods(client)
    client.show(old)
    await look(controller)
    client.schema_of_jobs = job_schema()
    old.served_schema = compare(job_schema(), release="9")
    await look(controller)
    assert condition_of(client, "Ready")["message"] == "the trainer has not reported yet"
    assert "current" in status_of(client)["rollout"]
