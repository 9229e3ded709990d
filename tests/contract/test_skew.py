"""Two releases, of which the newer has one field more in the spec. test_settings.py has the same of the
RunConfig."""

from typing import Annotated, Any

from pydantic import Field

from grpo_api.changes import fixed_part
from grpo_api.model import NOT_STORED
from grpo_api.schema import property_at, structural_schema
from grpo_api.v1alpha1.spec import AlgorithmSpec, GRPOJobSpec
from grpo_operator.observe.from_cache import job_view


class NewerAlgorithm(AlgorithmSpec):
    """With one field more."""

    patience: Annotated[int, Field(ge=1, le=100), NOT_STORED] = 5
    """Steps."""


class NewerSpec(GRPOJobSpec):
    """With one field more."""

    algorithm: NewerAlgorithm
    """With a field that this release does not have."""


def stored(**algorithm: Any) -> dict[str, Any]:
    """A job as the API server has it."""
    spec = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10, **algorithm},
    }
    metadata = {"name": "copy", "namespace": "team", "uid": "1", "resourceVersion": "4"}
    return {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": metadata, "spec": spec}


def test_an_older_operator_reads_every_job_that_does_not_ask_for_the_new_field() -> None:
    assert "default" not in property_at(structural_schema(NewerSpec), "algorithm.patience")
    asked_for, plain = job_view(stored(patience=7)), job_view(stored())
    assert asked_for.spec is None and "spec.algorithm.patience" in asked_for.problem
    assert plain.spec is not None and plain.problem == ""


def test_a_newer_operator_reads_a_job_of_before_the_field_and_takes_it_for_the_same_run() -> None:
    before = GRPOJobSpec.from_object(stored()["spec"])
    newer = NewerSpec.from_object(before.to_object())
    assert newer.algorithm.patience == 5
    assert newer.to_object() == before.to_object()
    assert fixed_part(newer) == fixed_part(before)
    asked_for = NewerSpec.from_object(stored(patience=5)["spec"])
    assert asked_for.to_object()["algorithm"]["patience"] == 5
