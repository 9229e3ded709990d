"""The states of a fleet's engines, and what moves an engine from one to another. Pure: `now` is a parameter.

    Joining  an address that has not answered yet
    Stale    alive, with weights that are not the newest or not verified
    Current  alive, with the newest weights, verified and admitted: only these are given work
    Suspect  was Stale or Current, and does not answer now
    Lost     has been silent for too long, or its process has ended

A process that ended never comes back: its successor has another instance id and starts as Stale.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.fleet.engine_client import Address, Identity

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 120.0
SUPERSEDED_WAIT_SECONDS = 5.0


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

    `version` is the weights it was last verified with. `num_failures` counts failed syncs since the last
    good one; the watcher starts no sync before `retry_at`. `why_frozen` says what of it stands still.
    """

    address: Address
    last_seen: float
    state: MemberState = MemberState.JOINING
    instance: str = ""
    name: str = ""
    version: PolicyVersion | None = None
    num_failures: int = 0
    retry_at: float = 0.0
    why_frozen: str = ""

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
    return replace(member, state=state, last_seen=now, why_frozen="")


def unanswered(member: Member, *, now: float, lost_after_seconds: float) -> Member:
    """The member after its engine could not be reached."""
    if member.state in (MemberState.JOINING, MemberState.LOST):
        return member
    is_lost = now - member.last_seen > lost_after_seconds
    return replace(member, state=MemberState.LOST if is_lost else MemberState.SUSPECT)


def frozen(member: Member, why: str, *, now: float) -> Member:
    """The member after it was found frozen: without its requests, and out of the fleet until a sync succeeds.

    It may go on as if nothing had been, with answers that nobody waits for any more.
    """
    if member.why_frozen or _is_out(member):
        return member
    return replace(failed_sync(member, now=now), state=MemberState.SUSPECT, why_frozen=why)


def unreachable(member: Member, *, now: float) -> Member:
    """The member after nobody has answered at its address for long: without its requests. Whether its process
    has ended or its pod is gone, it is no longer frozen."""
    if _is_out(member) and not member.why_frozen:
        return member
    return replace(failed_sync(member, now=now), state=MemberState.SUSPECT, why_frozen="")


def _is_out(member: Member) -> bool:
    """Whether it has no requests that could be given to others."""
    is_known_to_be = member.state in (MemberState.JOINING, MemberState.LOST)
    return is_known_to_be or (member.state == MemberState.SUSPECT and member.version is None)


def died(member: Member) -> Member:
    """The member after its process was seen to be dead."""
    return replace(member, state=MemberState.LOST, why_frozen="")


def synced(member: Member, version: PolicyVersion, *, newest: PolicyVersion, now: float) -> Member:
    """The member after a verified sync.

    When there are newer weights by now, it is not synced again at once: it would always be busy when the next
    ones come, and never be Current.
    """
    is_current = version == newest
    return replace(
        member,
        state=MemberState.CURRENT if is_current else MemberState.STALE,
        version=version,
        num_failures=0,
        retry_at=now if is_current else now + SUPERSEDED_WAIT_SECONDS,
        last_seen=now,
    )


def failed_sync(member: Member, *, now: float) -> Member:
    """The member after a sync that failed: out of the fleet until one succeeds, tried ever less often."""
    # the exponent is bounded too: after days of failures the power would exceed the range of floats
    wait = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(member.num_failures, 30))
    state = MemberState.STALE if member.state == MemberState.CURRENT else member.state
    return replace(
        member, state=state, version=None, num_failures=member.num_failures + 1, retry_at=now + wait
    )


def unhealthy(member: Member, *, now: float) -> Member:
    """The member after a request to it failed: out of the fleet until a sync succeeds.

    Many requests fail at once when an engine fails; together they count as one failure.
    """
    return failed_sync(member, now=now) if member.state == MemberState.CURRENT else member


def will_answer(member: Member) -> bool:
    """Whether the member will still answer requests that it was given while it was Current.

    One that is unhealthy, or whose sync failed, may stay paused with them; one that is frozen does not go on.
    """
    return member.state != MemberState.LOST and member.version is not None


def outdated(member: Member) -> Member:
    """The member once there are newer weights than it has."""
    return replace(member, state=MemberState.STALE) if member.state == MemberState.CURRENT else member


def is_gone(member: Member, *, is_listed: bool) -> bool:
    """Whether to forget the member: its address is no longer listed and nothing answers there."""
    return not is_listed and member.state in (MemberState.JOINING, MemberState.SUSPECT, MemberState.LOST)


def count(members: list[Member], *, desired: int) -> EngineCounts:
    """Engines by what the status shows. `known` leaves out those that are lost."""
    return EngineCounts(
        desired=desired,
        known=sum(member.state != MemberState.LOST for member in members),
        current=sum(member.state == MemberState.CURRENT for member in members),
    )
