"""What another release wrote: the job says so, and running pods are left alone."""

from typing import Any

from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.children.shared import FROZEN_SPEC_KEY, config_map
from grpo_operator.cluster.kinds import CONFIG_MAPS, JOBS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.memory import Memory
from grpo_operator.observe.snapshot import job_and_pods, job_view, observe

from .fake_world import IMAGE, NOW, UID, FakeWorld, report, spec, termination


def item(**changes: Any) -> dict[str, Any]:
    meta = {"name": "copy", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "4"}
    return {"metadata": meta, "spec": spec().to_object() | changes}


def too_new() -> FakeWorld:
    world = FakeWorld(problem='spec.foo: unknown field "spec.foo"')
    world.is_skewed = True
    return world


def test_an_unknown_field_or_choice_is_skew_and_a_wrong_number_is_not():
    assert job_view(item(foo=1)).is_skewed
    assert job_view(item(mode="Sideways")).is_skewed
    wrong = job_view(item(failurePolicy={"maxRestarts": -1}))
    assert wrong.problem and not wrong.is_skewed


def test_a_job_that_is_newer_than_its_operator_waits_and_says_for_what():
    world = too_new()
    world.settle()
    for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY):
        found = world.condition(kind)
        assert (found.status, found.reason) == ("False", "SchemaSkew")
        assert "spec.foo" in found.message and "operator is older" in found.message
    assert (world.status.phase, world.status.attempt, world.pods) == (Phase.PENDING, 0, {})
    assert world.condition(ConditionType.FINISHED).status == "False"
    world.spec, world.problem, world.is_skewed = spec(), "", False  # the operator was upgraded
    world.start()
    assert world.status.phase == Phase.RUNNING


def blocked() -> FakeWorld:
    """A running job whose frozen spec this release cannot read."""
    world = FakeWorld().start()
    world.frozen_problem = 'ConfigMap copy-config: spec.foo: unknown field "spec.foo"'
    world.spec, world.generation = spec(algorithm={"steps": 99}), 2
    return world


def test_a_job_whose_frozen_spec_cannot_be_read_is_left_alone_and_says_so():
    world = blocked()
    before = dict(world.pods)
    running = world.condition(ConditionType.RUNNING)
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert "spec.foo" in ready.message and "the pods go on" in ready.message
    assert world.condition(ConditionType.RUNNING).status == running.status == "True"
    assert (world.pods, world.status.phase) == (before, Phase.RUNNING)
    world.end(world.pod("trainer-a1-0"), termination(1, "boom"))
    world.settle()
    assert (world.status.attempt, world.names("rollout")) == (1, ["rollout-0-i0", "rollout-1-i0"])


def test_a_job_that_can_be_read_again_goes_on_as_before():
    world = blocked()
    world.settle()
    world.frozen_problem, world.frozen_spec = "", spec()  # the operator of the right release is back
    world.settle()
    assert world.condition(ConditionType.READY).reason == "TrainerStarting"
    world.progress = report()
    world.settle()
    assert world.condition(ConditionType.READY).status == "True"


def test_a_job_whose_frozen_spec_cannot_be_read_is_complete_when_its_trainer_is_done():
    world = blocked()
    world.settle()
    world.end(world.pod("trainer-a1-0"), termination(0))
    world.settle()
    assert world.status.phase == Phase.SUCCEEDED


def test_a_frozen_spec_that_cannot_be_read_is_not_needed_while_the_live_one_is_the_same():
    world = FakeWorld().start()
    world.frozen_problem = "ConfigMap copy-config: cut off"
    assert world.plan().status == world.status


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
    world = FakeWorld().start()
    world.frozen_spec = spec()
    world.progress = report()
    world.settle()
    world.spec, world.problem, world.is_skewed = None, 'spec.foo: unknown field "spec.foo"', True
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert ready.status == "True"
    assert ready.message.count("changes to the spec are not followed") == 1 and "spec.foo" in ready.message


def test_a_trainer_of_another_release_is_said_and_left_alone():
    world = FakeWorld().start()
    world.report_problem = ReasonMessage("SchemaSkew", "Progress has schemaVersion 2 but this side speaks 1")
    world.settle()
    ready = world.condition(ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", "SchemaSkew")
    assert (world.status.phase, world.status.attempt) == (Phase.RUNNING, 1)


def test_a_report_from_before_a_report_problem_is_not_written_again_with_it():
    world = FakeWorld().start()
    world.progress = report(tokens_per_second=1.0)
    world.settle()
    world.progress = report(tokens_per_second=2.0)  # of another operator, which heard more
    world.settle()
    world.progress, world.report_problem = (
        report(tokens_per_second=1.0),
        ReasonMessage("ProgressUnreadable", "rubbish"),
    )
    world.settle()
    assert world.status.tokens_per_second == "2"
    assert world.condition(ConditionType.READY).reason == "ProgressUnreadable"


def test_what_was_written_before_does_not_undo_what_another_operator_wrote_since():
    world = FakeWorld().start()
    world.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, message="waits")
    world.settle()
    mine = world.progress
    world.progress, world.is_news = report(tokens_per_second=9.0), True
    world.settle()  # the other operator's newer report
    world.progress, world.is_news = mine, False
    assert world.plan().status == world.status
