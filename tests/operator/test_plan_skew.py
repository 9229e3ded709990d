"""What another release wrote: the job says so, and running pods are left alone."""

import json
from datetime import timedelta
from typing import Any

import pytest

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.children.config import SPEC_KEY, config_map
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.from_cache import job_and_pods, job_view, observe
from grpo_operator.observe.process_state import ProcessState

from .fake_cluster import IMAGE, NOW, UID, FakeCluster, report, spec, termination, termination_message


def item(**changes: Any) -> dict[str, Any]:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "4"}
    return {"metadata": meta, "spec": spec().to_object() | changes}


UNKNOWN_FIELD = 'spec.foo: unknown field "spec.foo"'
UNKNOWN_BOUND = "spec.algorithm.groupSize: Invalid value: 1: should be greater than or equal to 2"


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"foo": 1}, ["spec.foo"]),
        ({"futureSection": {"a": 1, "b": {"c": 2}}}, ["spec.futureSection"]),
        ({"mode": "Sideways"}, ["spec.mode"]),
        ({"failurePolicy": {"maxRestarts": -1}}, ["spec.failurePolicy.maxRestarts"]),
        (
            {"foo": 1, "algorithm": {"steps": 0, "groupSize": 1}, "rewards": [{"name": "a", "bar": 2}]},
            ["spec.foo", "spec.algorithm.steps", "spec.algorithm.groupSize", "spec.rewards[0].bar"],
        ),
    ],
)
def test_a_spec_that_this_operator_cannot_read_waits_and_every_field_of_it_is_named(
    change: dict[str, Any], fields: list[str]
):
    view = job_view(item(**change))
    assert view.spec is None
    cluster = FakeCluster(problem=view.problem)
    cluster.settle()
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        found = cluster.condition(kind)
        assert (found.status, found.reason) == ("False", "SchemaSkew")
        assert [field for field in fields if field not in found.message] == []
    assert (cluster.status.phase, cluster.status.attempt, cluster.pods) == (Phase.PENDING, 0, {})
    for kind in (ConditionType.FAILED, ConditionType.FINISHED):
        assert cluster.condition(kind).status == "False"


@pytest.mark.parametrize("problem", [UNKNOWN_FIELD, UNKNOWN_BOUND])
def test_a_job_that_waited_starts_by_itself_once_its_spec_can_be_read(problem: str):
    cluster = FakeCluster(problem=problem)
    cluster.settle()
    cluster.now += timedelta(days=7)  # no clock runs against it
    cluster.settle()
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    cluster.spec, cluster.problem = spec(), ""  # the operator was upgraded, or the spec was corrected
    cluster.start()
    assert cluster.status.phase == Phase.RUNNING


def test_the_fix_is_said_also_where_there_is_no_room_for_every_field():
    view = job_view(item(**{f"aFieldOfTheFuture{n}": n for n in range(100)}))
    cluster = FakeCluster(problem=view.problem)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert "run the operator of the release that the GRPOJob CRD came with" in ready.message
    assert "aFieldOfTheFuture0" in ready.message


def blocked() -> FakeCluster:
    """A running job whose stored spec this release cannot read."""
    cluster = FakeCluster().start()
    cluster.stored_problem = 'ConfigMap copy-config: spec.foo: unknown field "spec.foo"'
    cluster.spec, cluster.generation = spec(algorithm={"steps": 99}), 2
    return cluster


def test_a_job_whose_stored_spec_cannot_be_read_is_left_alone_and_says_so():
    cluster = blocked()
    before = dict(cluster.pods)
    running = cluster.condition(ConditionType.RUNNING)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert "spec.foo" in ready.message and "the pods continue" in ready.message
    assert cluster.condition(ConditionType.RUNNING).status == running.status == "True"
    assert (cluster.pods, cluster.status.phase) == (before, Phase.RUNNING)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("rollout")) == (1, ["rollout-0-i0", "rollout-1-i0"])


def test_a_job_that_can_be_read_again_goes_on_as_before():
    cluster = blocked()
    cluster.settle()
    cluster.stored_problem, cluster.stored_spec = "", spec()  # the operator of the right release is back
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "TrainerStarting"
    cluster.progress = report()
    cluster.settle()
    assert cluster.condition(ConditionType.READY).status == "True"


def test_a_job_whose_stored_spec_cannot_be_read_is_complete_when_its_trainer_is_done():
    cluster = blocked()
    cluster.settle()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_a_stored_spec_that_cannot_be_read_is_not_needed_while_the_live_one_is_the_same():
    cluster = FakeCluster().start()
    cluster.stored_problem = "ConfigMap copy-config: cut off"
    assert cluster.plan().status == cluster.status


def test_a_broken_config_map_is_observed_as_a_problem_and_not_raised():
    cache = Cache()
    run = JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=spec(), image=IMAGE)
    manifest = config_map(run).body
    manifest["data"][SPEC_KEY] = '{"foo": 1}'
    manifest["metadata"] |= {"uid": "config", "resourceVersion": "5"}
    cache.put(CONFIG_MAPS, manifest)
    cache.put(JOBS, {**item(), "status": {"attempt": 1, "revision": run.revision}})
    key = ("default", "copy")
    job = job_and_pods(cache, key)
    assert job is not None
    found = observe(cache, job, ProcessState().remember_pods(key, job, now=NOW))
    assert found is not None and found.stored_spec is None
    assert run.names.config(run.revision) in found.stored_problem and "foo" in found.stored_problem


@pytest.mark.parametrize("problem", [UNKNOWN_FIELD, UNKNOWN_BOUND])
def test_a_live_spec_that_cannot_be_read_any_more_does_not_stop_the_run_but_is_said(problem: str):
    cluster = FakeCluster().start()
    cluster.stored_spec = spec()
    cluster.progress = report()
    cluster.settle()
    cluster.spec, cluster.problem = None, problem
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert ready.status == "True"
    assert ready.message.count("changes to the spec are not followed") == 1 and problem in ready.message
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.names("trainer") == ["trainer-a1-0", "trainer-a2-0"]


@pytest.mark.parametrize("problem", [UNKNOWN_FIELD, UNKNOWN_BOUND])
def test_a_run_of_which_neither_the_live_nor_the_stored_spec_can_be_read_is_left_alone(problem: str):
    cluster = FakeCluster().start()
    cluster.spec, cluster.problem = None, problem
    before = dict(cluster.pods)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert (cluster.pods, cluster.status.phase) == (before, Phase.RUNNING)
    assert cluster.condition(ConditionType.FINISHED).status == "False"


def test_a_trainer_of_another_release_is_said_and_left_alone():
    cluster = FakeCluster().start()
    cluster.report_problem = ReasonMessage(
        "SchemaSkew", "Progress has schemaVersion 2 but this side speaks 1"
    )
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 1)


def test_a_report_from_before_a_report_problem_is_not_written_again_with_it():
    cluster = FakeCluster().start()
    cluster.progress = report(tokens_per_second=1.0)
    cluster.settle()
    cluster.progress = report(tokens_per_second=2.0)  # of another operator, which heard more
    cluster.settle()
    cluster.progress, cluster.report_problem = (
        report(tokens_per_second=1.0),
        ReasonMessage("ProgressUnreadable", "rubbish"),
    )
    cluster.settle()
    assert cluster.status.tokens_per_second == "2"
    assert cluster.condition(ConditionType.READY).reason == "ProgressUnreadable"


def test_what_was_written_before_does_not_undo_what_another_operator_wrote_since():
    cluster = FakeCluster().start()
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, message="waits")
    cluster.settle()
    mine = cluster.progress
    cluster.progress, cluster.is_news = report(tokens_per_second=9.0), True
    cluster.settle()  # the other operator's newer report
    cluster.progress, cluster.is_news = mine, False
    assert cluster.plan().status == cluster.status


def test_a_condition_of_a_newer_release_stays_as_it_is_while_the_others_change():
    cluster = FakeCluster().start()
    of_newer = {
        "type": "FromTheFuture",
        "status": "True",
        "reason": "NewReason",
        "message": "what only the newer release knows",
        "lastTransitionTime": "2026-11-21T11:00:00Z",
        "observedGeneration": 1,
    }
    stored = cluster.status.to_object()
    stored["conditions"].insert(2, of_newer)
    cluster.status = job_view(item() | {"status": stored}).status
    cluster.progress = report()
    cluster.settle()
    assert cluster.condition(ConditionType.READY).status == "True"
    written = cluster.status.to_object()["conditions"]
    assert [known for known in written if known["type"] == "FromTheFuture"] == [of_newer]
    assert len(written) == len(stored["conditions"])


def test_what_a_trainer_of_a_newer_release_ends_with_is_read_without_its_new_fields():
    cluster = FakeCluster().start()
    message = json.loads(termination_message(1, "UnexpectedError", "boom", progress=report(step=7)))
    message |= {"futureField": 1, "progress": message["progress"] | {"futureField": {"a": 1}}}
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, json.dumps(message)))
    cluster.settle()
    assert (cluster.status.last_failure.reason, cluster.status.highest_step) == ("UnexpectedError", 7)


def lost() -> FakeCluster:
    """A running job whose spec was changed and of whose stored one nothing is left."""
    cluster = FakeCluster().start()
    cluster.spec, cluster.generation = spec(algorithm={"steps": 99}), 2
    return cluster


def test_a_run_whose_stored_spec_is_lost_goes_on_and_says_what_is_missing():
    cluster = lost()
    before = dict(cluster.pods)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "RevisionLost")
    (config,) = cluster.config_names
    assert config in ready.message and "create the job anew" in ready.message
    assert cluster.condition(ConditionType.RUNNING).status == "True"
    assert (cluster.pods, cluster.status.phase) == (before, Phase.RUNNING)
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_a_run_whose_spec_is_changed_back_is_led_again():
    cluster = lost()
    cluster.settle()
    cluster.spec, cluster.generation = spec(), 3
    cluster.progress = report()
    cluster.settle()
    assert cluster.condition(ConditionType.READY).status == "True"
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert cluster.status.attempt == 2
