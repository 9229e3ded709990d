"""Whether a run keeps a journal of its rollouts."""

from typing import Any

import pytest

from grpo_api.v1alpha1.spec import CheckpointSpec


@pytest.mark.parametrize(
    ("section", "keeps"),
    [
        ({}, False),
        ({"journal": False}, False),
        ({"claimName": "claim"}, True),
        ({"claimName": "claim", "journal": True}, True),
        ({"claimName": "claim", "journal": False}, False),
    ],
)
def test_a_journal_is_kept_where_there_is_a_claim_unless_the_job_says_no(
    section: dict[str, Any], keeps: bool
) -> None:
    assert CheckpointSpec.model_validate(section).keeps_journal is keeps


def test_a_journal_needs_a_claim() -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.journal needs checkpoint\.claimName"):
        CheckpointSpec.model_validate({"journal": True})
