"""Waiting for a change of the fleet."""

import asyncio

import pytest
from fleet_builder import fleet_settings_of

from grpo_runtime.fleet.connections import open_session
from grpo_runtime.fleet.roster import Roster


@pytest.mark.parametrize("num_turns", range(4))
async def test_a_wait_that_is_cancelled_as_the_change_comes_is_cancelled(num_turns: int) -> None:
    """Whoever ends a loop around `changed` waits for its end: it may not go on, however close the two are."""
    async with open_session() as session:
        roster = Roster(fleet_settings_of(), session)
        wait = asyncio.ensure_future(roster.changed(timeout_seconds=30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        roster.wake()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        is_cancelling = wait.cancel()
        await asyncio.wait([wait])
        assert wait.cancelled() == is_cancelling
