"""The states of a fleet's engines, and what moves an engine from one to another. Pure: `now` is a parameter.

    Joining  an address that has not answered yet
    Stale    alive, with weights that are not the newest or not verified
    Current  alive, with the newest weights, verified and admitted: these are given work
    Suspect  was Stale or Current, and does not answer now
    Lost     has been silent for too long, or its process has ended

A process that ended never comes back: its successor has another instance id and starts as Stale. Where
weights may change while completions are sampled, a Stale engine that has the weights before the newest is
given work until it is paused for these (`still_serves`).
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from grpo_api.contract.progress import MAX_HUNG_REPORTED, EngineCounts, HungEngine
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.fleet.engine_client import Address, Identity

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 120.0
SYNCS_ALONE = 10
"""So many good syncs an engine has alone after it was too slow for others."""
SUPERSEDED_WAIT_SECONDS = 5.0
_LONGEST_TEXT = 253


class MemberState(StrEnum):
    """See the module's docstring."""

    JOINING = "Joining"
    STALE = "Stale"
    CURRENT = "Current"
    SUSPECT = "Suspect"
    LOST = "Lost"


@dataclass(frozen=True)
class Member:
    """One engine process, or an address where one is expected.

    `version` is the weights it was last verified with. `num_failures` counts failed syncs since the last good
    one; the watcher starts no sync before `retry_at`. In the next `syncs_alone` syncs no other engine waits
    for it. `why_hung` says which part of it is hung now. `hung_since` is when it was first found hung without
    a good sync since then, and `why_last_hung` why it was last found hung. `still_serves` says that it was
    Current when there were newer weights, and may be given work until it is paused for them."""

    address: Address
    last_seen: float
    state: MemberState = MemberState.JOINING
    instance: str = ""
    name: str = ""
    version: PolicyVersion | None = None
    num_failures: int = 0
    retry_at: float = 0.0
    syncs_alone: int = 0
    why_hung: str = ""
    hung_since: float | None = None
    why_last_hung: str = ""
    still_serves: bool = False

    @property
    def may_serve(self) -> bool:
        """Whether it may be given work."""
        return self.state == MemberState.CURRENT or (self.state == MemberState.STALE and self.still_serves)

    @property
    def label(self) -> str:
        """The name of the engine in logs and reports."""
        return self.name or str(self.address)


def seen(member: Member, identity: Identity, *, newest: PolicyVersion | None, now: float) -> Member:
    """The member after its engine said who it is. `newest` is the version that makes it Current."""
    if identity.instance != member.instance:
        return Member(
            address=member.address,
            last_seen=now,
            state=MemberState.STALE,
            instance=identity.instance,
            name=identity.name,
        )
    is_current = newest is not None and member.version == newest and identity.version == str(newest)
    state = MemberState.CURRENT if is_current else MemberState.STALE
    still_serves = member.still_serves and identity.version == str(member.version)
    found = replace(member, state=state, last_seen=now, why_hung="", still_serves=still_serves)
    # before there are weights no sync can show that it works again
    return found if newest is not None else _clear_hung(found)


def unanswered(member: Member, *, now: float, lost_after_seconds: float) -> Member:
    """The member after its engine could not be reached."""
    if member.state in (MemberState.JOINING, MemberState.LOST):
        return member
    is_lost = now - member.last_seen > lost_after_seconds
    return replace(member, state=MemberState.LOST if is_lost else MemberState.SUSPECT)


def hung(member: Member, why: str, *, now: float) -> Member:
    """The member after it was found hung: without its requests, and out of the fleet until a sync succeeds.

    It may continue as if nothing had been, with answers that nobody waits for any more.
    """
    if member.why_hung or _is_out(member):
        return member
    marked = _mark_hung(failed_sync(member, now=now), why, now=now)
    return replace(marked, state=MemberState.SUSPECT, why_hung=why)


def _mark_hung(member: Member, why: str, *, now: float) -> Member:
    since = now if member.hung_since is None else member.hung_since
    return replace(member, hung_since=since, why_last_hung=why)


def _clear_hung(member: Member) -> Member:
    return replace(member, hung_since=None, why_last_hung="")


def unreachable(member: Member, *, now: float) -> Member:
    """The member after nobody has answered at its address for long: without its requests. Whether its process
    has ended or its pod is gone, it is no longer hung."""
    if _is_out(member) and not member.why_hung:
        return member
    return replace(_clear_hung(failed_sync(member, now=now)), state=MemberState.SUSPECT, why_hung="")


def _is_out(member: Member) -> bool:
    """Whether it has no requests that could be given to others."""
    is_known_to_be = member.state in (MemberState.JOINING, MemberState.LOST)
    return is_known_to_be or (member.state == MemberState.SUSPECT and member.version is None)


def died(member: Member) -> Member:
    """The member after its process was seen to be dead."""
    return replace(_clear_hung(member), state=MemberState.LOST, why_hung="")


def synced(member: Member, version: PolicyVersion, *, newest: PolicyVersion, now: float) -> Member:
    """The member after a verified sync.

    When there are newer weights by now, it is not synced again at once: it would always be busy when the next
    ones come, and never be Current.
    """
    is_current = version == newest
    return replace(
        _clear_hung(member),
        state=MemberState.CURRENT if is_current else MemberState.STALE,
        version=version,
        still_serves=False,
        num_failures=0,
        syncs_alone=max(0, member.syncs_alone - 1),
        retry_at=now if is_current else now + SUPERSEDED_WAIT_SECONDS,
        last_seen=now,
    )


def failed_sync(member: Member, *, now: float) -> Member:
    """The member after a sync that failed: out of the fleet until one succeeds, tried ever less often."""
    # the exponent is bounded too: after days of failures the power would exceed the range of floats
    wait = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(member.num_failures, 30))
    state = MemberState.STALE if member.state == MemberState.CURRENT else member.state
    return replace(
        member,
        state=state,
        version=None,
        still_serves=False,
        num_failures=member.num_failures + 1,
        retry_at=now + wait,
    )


def stopped_in_sync(member: Member, why: str, *, now: float) -> Member:
    """The member after a sync that ran into its deadline: it may be hung in the middle of a transfer."""
    return _mark_hung(failed_sync(member, now=now), why, now=now)


def too_slow(member: Member, *, now: float) -> Member:
    """The member after a sync in which it was too slow for the engines that shared it: it gets its weights,
    but they do not wait for it."""
    return replace(failed_sync(member, now=now), syncs_alone=SYNCS_ALONE)


def shares_syncs(member: Member) -> bool:
    """Whether others may go through a sync with it, and the next step may wait for it."""
    return member.num_failures == 0 and member.syncs_alone == 0


def unhealthy(member: Member, *, now: float) -> Member:
    """The member after a request to it failed: out of the fleet until a sync succeeds.

    Many requests fail at once when an engine fails; together they count as one failure.
    """
    if member.state == MemberState.CURRENT:
        return failed_sync(member, now=now)
    return replace(member, still_serves=False)


def will_answer(member: Member) -> bool:
    """Whether the member will still answer requests that it was given while it could serve.

    One that is unhealthy, or whose sync failed, may stay paused with them; one that hangs does not continue.
    """
    return member.state != MemberState.LOST and member.version is not None


def outdated(member: Member, *, still_serves: bool = False) -> Member:
    """The member once there are newer weights than it has. One that was Current `still_serves`, where that
    may be."""
    if member.state != MemberState.CURRENT:
        return serves_no_more(member)
    return replace(member, state=MemberState.STALE, still_serves=still_serves)


def serves_no_more(member: Member) -> Member:
    """The member when it is paused for newer weights, or when all requests are to get them."""
    return replace(member, still_serves=False) if member.still_serves else member


def is_gone(member: Member, *, is_listed: bool) -> bool:
    """Whether to forget the member: its address is no longer listed and nothing answers there."""
    return not is_listed and member.state in (MemberState.JOINING, MemberState.SUSPECT, MemberState.LOST)


def is_hung(member: Member) -> bool:
    """Whether the member is hung, or has continued and yet failed another sync."""
    return member.hung_since is not None and (member.why_hung != "" or member.num_failures > 1)


def reported_hung(
    members: list[Member], *, now: float, reported_after_seconds: float, clock_offset: float
) -> tuple[HungEngine, ...]:
    """The members that have been hung for so long, the longest first. `clock_offset` is what makes seconds
    since 1970 of a time on the clock of `now`."""
    marked = sorted((member.hung_since or now, member.label, member.instance) for member in members)
    found = {member.instance: member for member in members if is_hung(member)}
    return tuple(
        HungEngine(
            name=label[:_LONGEST_TEXT],
            instance=instance[:_LONGEST_TEXT],
            since=datetime.fromtimestamp(int(since + clock_offset), UTC),
            why=found[instance].why_last_hung[:_LONGEST_TEXT],
        )
        for since, label, instance in marked
        if instance in found and now - since >= reported_after_seconds
    )[:MAX_HUNG_REPORTED]


def count(members: list[Member], *, desired: int, hung: tuple[HungEngine, ...] = ()) -> EngineCounts:
    """Engines by what the status shows. `known` leaves out those that are lost, and addresses at which none
    has answered yet."""
    return EngineCounts(
        hung=hung or None,
        desired=desired,
        known=sum(member.state not in (MemberState.JOINING, MemberState.LOST) for member in members),
        current=sum(member.may_serve for member in members),
    )
