"""A section of the spec is declared once, and a field says itself whether it may change.

The tests declare one more section, the way RunSections declares the others, and touch nothing else.
"""

from typing import Annotated, Any

from grpo_api.changes import MAY_CHANGE, fixed_part, fixed_paths, with_changes
from grpo_api.contract.run_config import RunConfig
from grpo_api.model import ApiModel
from grpo_api.resolve import resolve_into
from grpo_api.schema import property_at, structural_schema
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import GRPOJobSpec, RunSections


class TrackerSpec(ApiModel):
    """Where metrics are sent."""

    project: str = "default"
    """Name of the project."""
    every_steps: Annotated[int, MAY_CHANGE] = 1
    """Steps between two reports."""


class MoreSections(RunSections):
    """The sections of a spec, and one more."""

    tracker: TrackerSpec = TrackerSpec()
    """Where metrics are sent."""


class MoreSpec(MoreSections, GRPOJobSpec):
    """A spec with one more section."""


class MoreRunConfig(RunConfig, MoreSections):
    """A RunConfig with one more section."""


class MoreJob(GRPOJob):
    """A job with one more section."""

    spec: MoreSpec


def job(**spec: Any) -> MoreJob:
    base = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10},
    }
    return MoreJob.from_object(
        {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "copy", "uid": "1"},
            "spec": base | spec,
        }
    )


def test_a_declared_section_is_in_the_schema_and_reaches_the_run_config() -> None:
    schema = structural_schema(MoreSpec)
    assert property_at(schema, "tracker.project")["default"] == "default"
    config = resolve_into(MoreRunConfig, job(tracker={"project": "maths"}))
    assert config.tracker == TrackerSpec(project="maths")
    assert config.to_object()["tracker"] == {"project": "maths", "everySteps": 1}
    assert MoreRunConfig.from_object(config.to_object()) == config


def test_a_declared_section_is_fixed_but_for_the_field_that_may_change() -> None:
    assert "tracker.project" in fixed_paths(MoreSpec)
    assert "tracker.everySteps" not in fixed_paths(MoreSpec)
    snapshot = job(tracker={"project": "maths"}).spec
    assert fixed_part(snapshot)["tracker"] == {"project": "maths"}
    assert fixed_part(job(tracker={"project": "maths", "everySteps": 5}).spec) == fixed_part(snapshot)
    assert fixed_part(job(tracker={"project": "other"}).spec) != fixed_part(snapshot)


def test_a_reward_with_the_defaults_of_what_it_may_leave_out_is_the_same_run() -> None:
    def part(**reward: object) -> object:
        return fixed_part(job(rewards=[{"name": "copy", "builtin": "char_accuracy", **reward}]).spec)

    assert part(weight=1.0, timeoutSeconds=60, maxFailureShare=0.5) == part()
    assert part(weight=2.0) != part() != part(timeoutSeconds=61)


def test_a_running_job_follows_the_field_that_may_change_and_no_other() -> None:
    snapshot = job(tracker={"project": "maths"}).spec
    live = job(tracker={"project": "other", "everySteps": 5}, algorithm={"steps": 99}).spec
    followed = with_changes(snapshot, live=live)
    assert followed.tracker == TrackerSpec(project="maths", every_steps=5)
    assert followed.algorithm.steps == 10
