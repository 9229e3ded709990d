"""Whether a run keeps a journal of its rollouts."""

from typing import Any

import pytest

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob, parse_job
from grpo_api.v1alpha1.spec import CheckpointSpec


def job(**spec: Any) -> GRPOJob:
    required = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 1},
    }
    return parse_job(
        {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "copy", "namespace": "default", "uid": "a"},
            "spec": {**required, **spec},
        }
    )


@pytest.mark.parametrize(
    ("section", "in_pods", "on_this_machine"),
    [
        ({}, False, True),
        ({"journal": False}, False, False),
        ({"claimName": "claim"}, True, True),
        ({"claimName": "claim", "journal": True}, True, True),
        ({"claimName": "claim", "journal": False}, False, False),
    ],
)
def test_a_journal_is_kept_where_the_output_is_unless_the_job_says_no(
    section: dict[str, Any], in_pods: bool, on_this_machine: bool
) -> None:
    given = job(checkpoint=section)
    assert resolve(given).keeps_journal is in_pods
    assert resolve(given, is_one_machine=True).keeps_journal is on_this_machine


def test_a_run_says_whether_its_output_is_kept() -> None:
    assert resolve(job()).to_object()["isOutputLocal"] is False
    assert resolve(job(), is_one_machine=True).to_object()["isOutputLocal"] is True


def test_a_journal_needs_a_claim() -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.journal needs checkpoint\.claimName"):
        CheckpointSpec.model_validate({"journal": True})
