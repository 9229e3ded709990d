"""Who is in the fleet: the states and what moves between them."""

from dataclasses import replace

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import Address, Identity
from grpo_runtime.engines.fleet.membership import (
    MAX_RETRY_SECONDS,
    SUPERSEDED_WAIT_SECONDS,
    SYNCS_ALONE,
    Member,
    MemberState,
    count,
    died,
    failed_sync,
    hung,
    is_gone,
    is_hung,
    outdated,
    reported_hung,
    seen,
    serves_no_more,
    shares_syncs,
    stopped_in_sync,
    synced,
    too_slow,
    unanswered,
    unhealthy,
    unreachable,
    will_answer,
)

ADDRESS = Address("10.0.0.1", 8000)
OLD, NEW, NEWER = PolicyVersion(1, 4), PolicyVersion(1, 5), PolicyVersion(1, 6)


def identity(*, instance: str = "a", version: str = "") -> Identity:
    return Identity(instance=instance, name="pod-0", attempt=1, version=version, is_live=True)


def joining() -> Member:
    return Member(address=ADDRESS, last_seen=0.0)


def current() -> Member:
    """A member that was seen, synced with NEW and admitted."""
    found = seen(joining(), identity(), newest=NEW, now=1.0)
    return synced(found, NEW, newest=NEW, now=2.0)


def test_an_address_that_answers_is_alive_with_unknown_weights() -> None:
    member = seen(joining(), identity(version=str(NEW)), newest=NEW, now=1.0)
    # whatever it says of itself: nobody here has verified it
    assert (member.state, member.instance, member.name) == (MemberState.STALE, "a", "pod-0")


def test_only_a_verified_sync_with_the_newest_weights_makes_a_member_current() -> None:
    assert current().state == MemberState.CURRENT
    late = synced(seen(joining(), identity(), newest=NEW, now=1.0), OLD, newest=NEW, now=2.0)
    assert late.state == MemberState.STALE
    assert late.retry_at == 2.0 + SUPERSEDED_WAIT_SECONDS


def test_newer_weights_make_every_member_stale() -> None:
    assert outdated(current()).state == MemberState.STALE
    assert outdated(joining()).state == MemberState.JOINING


def test_a_member_still_serves_with_the_weights_before_until_it_is_paused_for_newer_ones() -> None:
    member = outdated(current(), still_serves=True)
    assert (member.state, member.may_serve) == (MemberState.STALE, True)
    # only with the weights right before: those before these are too old
    assert not outdated(member, still_serves=True).may_serve
    paused = serves_no_more(member)
    assert (paused.may_serve, will_answer(paused)) == (False, True)
    assert synced(paused, NEWER, newest=NEWER, now=3.0).may_serve
    assert not outdated(current()).may_serve


def test_a_member_that_still_serves_and_fails_serves_no_more() -> None:
    member = outdated(current(), still_serves=True)
    again = seen(member, identity(version=str(NEW)), newest=NEWER, now=3.0)
    assert again.may_serve
    for failed in (
        failed_sync(member, now=3.0),
        unhealthy(member, now=3.0),
        hung(member, "its server does not answer", now=3.0),
        unanswered(member, now=3.0, lost_after_seconds=10.0),
        died(member),
        seen(member, identity(version=""), newest=NEWER, now=3.0),
        seen(member, identity(instance="b", version=str(NEW)), newest=NEWER, now=3.0),
    ):
        assert not failed.may_serve


def test_a_restarted_process_starts_from_nothing() -> None:
    member = seen(current(), identity(instance="b", version=str(NEW)), newest=NEW, now=3.0)
    assert (member.state, member.instance, member.version) == (MemberState.STALE, "b", None)


def test_a_silent_member_is_suspected_at_once_and_lost_after_the_wait() -> None:
    suspect = unanswered(current(), now=3.0, lost_after_seconds=10.0)
    assert suspect.state == MemberState.SUSPECT
    assert unanswered(suspect, now=12.0, lost_after_seconds=10.0).state == MemberState.SUSPECT
    assert unanswered(suspect, now=12.1, lost_after_seconds=10.0).state == MemberState.LOST


def test_a_suspect_that_answers_goes_on_where_it_was() -> None:
    suspect = unanswered(current(), now=3.0, lost_after_seconds=10.0)
    assert seen(suspect, identity(version=str(NEW)), newest=NEW, now=4.0).state == MemberState.CURRENT
    revoked = seen(suspect, identity(version=""), newest=NEW, now=4.0)
    assert revoked.state == MemberState.STALE


def test_a_hung_member_loses_its_requests_and_is_stale_when_it_goes_on() -> None:
    suspect = hung(current(), "its server does not answer", now=3.0)
    assert (suspect.state, will_answer(suspect)) == (MemberState.SUSPECT, False)
    assert hung(suspect, "its engine core does not answer", now=9.0) is suspect
    again = seen(suspect, identity(version=str(NEW)), newest=NEW, now=10.0)
    assert (again.state, again.why_hung) == (MemberState.STALE, "")
    # no sync waits for it at once: it may freeze again
    assert (again.num_failures, again.retry_at) == (1, 5.0)


def test_what_has_not_answered_yet_or_is_lost_cannot_freeze() -> None:
    for member in (joining(), died(current())):
        assert hung(member, "its server does not answer", now=3.0) is member


def test_an_address_that_never_answered_cannot_be_lost() -> None:
    assert unanswered(joining(), now=1e6, lost_after_seconds=10.0).state == MemberState.JOINING


def test_a_failed_sync_takes_a_member_out_and_is_tried_ever_less_often() -> None:
    member, waits = current(), []
    for _ in range(10):
        member = failed_sync(member, now=100.0)
        assert member.state == MemberState.STALE
        waits.append(member.retry_at - 100.0)
    assert waits[:3] == [2.0, 4.0, 8.0]
    assert waits[-1] == MAX_RETRY_SECONDS
    assert synced(member, NEW, newest=NEW, now=200.0).num_failures == 0


def test_an_engine_that_is_broken_for_days_is_still_tried_now_and_then() -> None:
    member = replace(current(), num_failures=5000)
    assert failed_sync(member, now=100.0).retry_at == 100.0 + MAX_RETRY_SECONDS


def test_requests_that_fail_together_count_as_one_failure() -> None:
    member = current()
    for _ in range(64):
        member = unhealthy(member, now=100.0)
    assert (member.state, member.num_failures, member.retry_at) == (MemberState.STALE, 1, 102.0)


def test_nobody_waits_for_the_requests_of_an_engine_that_is_out_of_the_fleet() -> None:
    assert will_answer(current())
    # it may come back, with its requests
    assert will_answer(unanswered(current(), now=3.0, lost_after_seconds=10.0))
    assert not will_answer(unhealthy(current(), now=3.0))
    # a failed sync may leave it paused
    assert not will_answer(failed_sync(current(), now=3.0))
    assert not will_answer(died(current()))


@pytest.mark.parametrize(
    ("state", "is_forgotten"),
    [
        (MemberState.JOINING, True),
        (MemberState.SUSPECT, True),
        (MemberState.LOST, True),
        (MemberState.STALE, False),
        (MemberState.CURRENT, False),
    ],
)
def test_an_address_no_longer_listed_is_forgotten_once_nothing_answers_there(
    state: MemberState, is_forgotten: bool
) -> None:
    member = replace(current(), state=state)
    assert is_gone(member, is_listed=False) == is_forgotten
    assert not is_gone(member, is_listed=True)


def test_counts_leave_out_the_lost_and_addresses_that_have_never_answered() -> None:
    stale = replace(current(), state=MemberState.STALE)
    counts = count([current(), stale, joining(), died(current())], desired=4)
    assert (counts.desired, counts.known, counts.current) == (4, 2, 1)
    still_serving = outdated(current(), still_serves=True)
    assert count([still_serving], desired=1).current == 1, "it is given work while weights travel to it"


WHY = "its engine core does not answer"


def told(*members: Member, now: float) -> list[tuple[str, str, float]]:
    """(name, why, since) of those that the progress names after a minute; its time 0 is 1000 s after 1970."""
    found = reported_hung(list(members), now=now, reported_after_seconds=60.0, clock_offset=1000.0)
    return [(each.name, each.why, each.since.timestamp()) for each in found]


def test_a_member_that_stays_hung_is_named_after_a_minute_also_once_it_is_lost() -> None:
    member = hung(current(), WHY, now=3.0)
    assert told(member, now=62.9) == []
    assert told(member, now=63.0) == [("pod-0", WHY, 1003.0)]
    lost = unanswered(member, now=70.0, lost_after_seconds=60.0)
    assert (lost.state, told(lost, now=80.0)) == (MemberState.LOST, [("pod-0", WHY, 1003.0)])


def test_a_hung_member_that_goes_on_is_not_named_unless_its_next_sync_fails_too() -> None:
    again = seen(hung(current(), WHY, now=3.0), identity(), newest=NEW, now=10.0)
    assert not is_hung(again)
    failed = stopped_in_sync(again, "it did not finish a weight sync", now=30.0)
    assert told(failed, now=100.0) == [("pod-0", "it did not finish a weight sync", 1003.0)]
    assert not is_hung(synced(failed, NEW, newest=NEW, now=101.0))


def test_one_sync_that_ran_into_its_deadline_is_no_standstill() -> None:
    once = stopped_in_sync(current(), "transfer: not done", now=3.0)
    assert not is_hung(once)
    assert is_hung(stopped_in_sync(once, "transfer: not done", now=5.0))


def test_a_member_whose_syncs_are_refused_does_not_stand_still() -> None:
    assert not is_hung(failed_sync(failed_sync(current(), now=3.0), now=5.0))


def test_before_there_are_weights_a_member_that_answers_again_works() -> None:
    member = seen(joining(), identity(), newest=None, now=1.0)
    for now in (3.0, 30.0):
        member = seen(hung(member, WHY, now=now), identity(), newest=None, now=now + 1)
    assert not is_hung(member)


def test_a_process_that_has_ended_no_longer_stands_still() -> None:
    marked = hung(current(), WHY, now=3.0)
    assert told(died(marked), unreachable(marked, now=4.0), now=100.0) == []
    assert told(seen(marked, identity(instance="b"), newest=NEW, now=4.0), now=100.0) == []


def test_those_that_have_stood_still_for_longest_are_named_and_no_more_than_a_report_holds() -> None:
    late = [replace(hung(current(), WHY, now=30.0 - i), name=f"pod-{i}", instance=str(i)) for i in range(20)]
    names = [name for name, _, _ in told(*late, now=200.0)]
    assert names == [f"pod-{i}" for i in reversed(range(4, 20))]


def test_an_engine_that_was_too_slow_for_others_shares_their_syncs_again_after_some_good_ones() -> None:
    member = too_slow(current(), now=3.0)
    assert (member.version, member.num_failures) == (None, 1)
    shared = []
    for _ in range(SYNCS_ALONE):
        member = synced(member, NEW, newest=NEW, now=4.0)
        shared.append(shares_syncs(member))
    assert shared == [False] * (SYNCS_ALONE - 1) + [True]
    assert not shares_syncs(failed_sync(member, now=5.0))
