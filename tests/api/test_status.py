"""What the status of a job says by itself."""

from datetime import UTC, datetime

import pytest

from grpo_api.v1alpha1.status import GRPOJobStatus, WaitingForRoom

NOW = datetime(2026, 11, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    ("waiting", "is_held_back"),
    [
        (None, False),
        (WaitingForRoom(since=NOW), False),
        (WaitingForRoom(since=NOW, held_back_until=NOW), True),
    ],
    ids=["it waits for nothing", "it waits with its pods", "it has given its nodes back"],
)
def test_a_job_is_held_back_from_when_it_gives_its_nodes_back(
    waiting: WaitingForRoom | None, is_held_back: bool
):
    assert GRPOJobStatus(waiting_for_room=waiting).is_held_back is is_held_back
