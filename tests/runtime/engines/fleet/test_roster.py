"""Where engines are looked for, what counts as a lost one, and waiting for a change of the fleet."""

import asyncio

import pytest
from fleet_builder import fleet_settings_of

from grpo_runtime.engines.fleet import membership
from grpo_runtime.engines.fleet.engine_client import Address, Identity, open_session
from grpo_runtime.engines.fleet.membership import Member
from grpo_runtime.engines.fleet.roster import Roster, resolve


@pytest.mark.parametrize("num_turns", range(4))
async def test_a_wait_that_is_cancelled_as_the_change_comes_is_cancelled(num_turns: int) -> None:
    """The caller that cancels a loop around `changed` waits for its end: it may not continue, however close
    the two are."""
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


async def test_an_engine_that_is_lost_and_then_replaced_is_lost_once() -> None:
    async with open_session() as session:
        roster = Roster(fleet_settings_of(), session)
        member = Member(address=Address("engine", 8000), last_seen=0.0)
        first, second = (
            Identity(instance=name, name="a", attempt=1, version="", is_live=True)
            for name in ("first", "second")
        )
        served = membership.seen(member, first, newest=None, now=1.0)
        for found in (
            member,
            served,
            membership.died(served),
            membership.seen(served, second, newest=None, now=2.0),
        ):
            roster._put(found)
        assert roster.num_lost == 1


async def test_a_name_that_does_not_resolve_yet_has_no_address() -> None:
    found = await resolve([Address("no-such-name.invalid", 8000), Address("127.0.0.1", 18000)])
    assert found == {Address("127.0.0.1", 18000)}
