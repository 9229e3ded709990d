"""What another release wrote: the job says so, and running pods are left alone."""

from typing import Any

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.children.config import FROZEN_SPEC_KEY, config_map
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.memory import Memory
from grpo_operator.observe.snapshot import job_and_pods, job_view, observe

from .fake_cluster import IMAGE, NOW, UID, FakeCluster, report, spec, termination


def item(**changes: Any) -> dict[str, Any]:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "4"}
    return {"metadata": meta, "spec": spec().to_object() | changes}


def too_new() -> FakeCluster:
    cluster = FakeCluster(problem='spec.foo: unknown field "spec.foo"')
    cluster.is_skewed = True
    return cluster


def test_an_unknown_field_or_choice_is_skew_and_a_wrong_number_is_not():
    assert job_view(item(foo=1)).is_skewed
    assert job_view(item(mode="Sideways")).is_skewed
    wrong = job_view(item(failurePolicy={"maxRestarts": -1}))
    assert wrong.problem and not wrong.is_skewed


def test_a_job_that_is_newer_than_its_operator_waits_and_says_for_what():
    cluster = too_new()
    cluster.settle()
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        found = cluster.condition(kind)
        assert (found.status, found.reason) == ("False", "SchemaSkew")
        assert "spec.foo" in found.message and "operator is older" in found.message
    assert (cluster.status.phase, cluster.status.attempt, cluster.pods) == (Phase.PENDING, 0, {})
    assert cluster.condition(ConditionType.FINISHED).status == "False"
    cluster.spec, cluster.problem, cluster.is_skewed = spec(), "", False  # the operator was upgraded
    cluster.start()
    assert cluster.status.phase == Phase.RUNNING


def blocked() -> FakeCluster:
    """A running job whose frozen spec this release cannot read."""
    cluster = FakeCluster().start()
    cluster.frozen_problem = 'ConfigMap copy-config: spec.foo: unknown field "spec.foo"'
    cluster.spec, cluster.generation = spec(algorithm={"steps": 99}), 2
    return cluster


def test_a_job_whose_frozen_spec_cannot_be_read_is_left_alone_and_says_so():
    cluster = blocked()
    before = dict(cluster.pods)
    running = cluster.condition(ConditionType.RUNNING)
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert "spec.foo" in ready.message and "the pods go on" in ready.message
    assert cluster.condition(ConditionType.RUNNING).status == running.status == "True"
    assert (cluster.pods, cluster.status.phase) == (before, Phase.RUNNING)
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, "boom"))
    cluster.settle()
    assert (cluster.status.attempt, cluster.names("rollout")) == (1, ["rollout-0-i0", "rollout-1-i0"])


def test_a_job_that_can_be_read_again_goes_on_as_before():
    cluster = blocked()
    cluster.settle()
    cluster.frozen_problem, cluster.frozen_spec = "", spec()  # the operator of the right release is back
    cluster.settle()
    assert cluster.condition(ConditionType.READY).reason == "TrainerStarting"
    cluster.progress = report()
    cluster.settle()
    assert cluster.condition(ConditionType.READY).status == "True"


def test_a_job_whose_frozen_spec_cannot_be_read_is_complete_when_its_trainer_is_done():
    cluster = blocked()
    cluster.settle()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    assert cluster.status.phase == Phase.SUCCEEDED


def test_a_frozen_spec_that_cannot_be_read_is_not_needed_while_the_live_one_is_the_same():
    cluster = FakeCluster().start()
    cluster.frozen_problem = "ConfigMap copy-config: cut off"
    assert cluster.plan().status == cluster.status


def test_a_broken_config_map_is_observed_as_a_problem_and_not_raised():
    cache = Cache()
    run = FrozenJob.freeze(namespace="default", job="copy", uid=UID, spec=spec(), image=IMAGE)
    manifest = config_map(run).body
    manifest["data"][FROZEN_SPEC_KEY] = '{"foo": 1}'
    manifest["metadata"] |= {"uid": "config", "resourceVersion": "5"}
    cache.put(CONFIG_MAPS, manifest)
    cache.put(JOBS, {**item(), "status": {"attempt": 1, "revision": run.revision}})
    key = ("default", "copy")
    job = job_and_pods(cache, key)
    assert job is not None
    found = observe(cache, job, Memory().remember_pods(key, job, now=NOW))
    assert found is not None and found.frozen_spec is None
    assert run.names.config(run.revision) in found.frozen_problem and "foo" in found.frozen_problem


def test_a_live_spec_that_cannot_be_read_any_more_does_not_stop_the_run_but_is_said():
    cluster = FakeCluster().start()
    cluster.frozen_spec = spec()
    cluster.progress = report()
    cluster.settle()
    cluster.spec, cluster.problem, cluster.is_skewed = None, 'spec.foo: unknown field "spec.foo"', True
    cluster.settle()
    ready = cluster.condition(ConditionType.READY)
    assert ready.status == "True"
    assert ready.message.count("changes to the spec are not followed") == 1 and "spec.foo" in ready.message


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
