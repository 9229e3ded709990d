"""Whether an engine process hangs: it exists and does nothing. Pure: `now` is a parameter.

A call for completions answers when they are done, so its silence says nothing, and engines are looked
at instead. An engine is two processes, and each of four signs can be missing alone:

    server   answers who it is
    core     answers, between two of its steps, whether it is paused
    tokens   the number that it has generated rises while it samples for us
    work     it samples while we wait for its answers, or else a request or an answer is lost

One long step delays the signs of core and tokens. So an engine that continued after more than the limit is
given twice that time, until there has been a round without such a step (a round ends with new weights). One
that has sampled nothing yet is given the time to compile.
"""

from dataclasses import dataclass, replace

from grpo_api.contract.versions import PolicyVersion

MIN_MISSED = 2
"""Looks in a row without a sign. One alone may be late because the trainer itself was suspended."""
_WORK_LIMITS = 3
"""So many times the usual limit for `work`: of an engine that has done its work, the answer is on its way."""


@dataclass(frozen=True)
class Limits:
    """How long a sign may be missing: usually, and of an engine that has sampled nothing yet."""

    hung_after_seconds: float
    first_step_seconds: float


@dataclass(frozen=True)
class Look:
    """What an engine whose server answers shows.

    `is_paused` is None when the core did not answer, `num_tokens` while the engine has no requests of ours
    and when it does not count.
    """

    is_paused: bool | None
    num_tokens: float | None = None
    num_running: float = 0.0

    @property
    def has_core_answered(self) -> bool:
        """Whether the core answered."""
        return self.is_paused is not None

    @property
    def is_sampling(self) -> bool:
        """Whether its tokens must rise. While the core does not answer, that is what is held against it."""
        return self.is_paused is False and self.num_running > 0


@dataclass(frozen=True)
class Sign:
    """When something was seen last, how many looks have missed it since, and how long it was missing (s)."""

    at: float
    num_missed: int = 0
    longest_gap: float = 0.0
    earlier_gap: float = 0.0
    """The longest one of the round before."""

    @property
    def recent_gap(self) -> float:
        """The longest one of this round and the one before."""
        return max(self.longest_gap, self.earlier_gap)

    def seen(self, now: float) -> "Sign":
        """It is there. Time in which nobody looked is no gap."""
        gap = now - self.at if self.num_missed else 0.0
        return replace(self, at=now, num_missed=0, longest_gap=max(self.longest_gap, gap))

    def missed(self) -> "Sign":
        """A look did not find it."""
        return replace(self, num_missed=self.num_missed + 1)

    def from_now(self, now: float) -> "Sign":
        """Nobody could see it until now, so that nothing is known of the time before."""
        return replace(self, at=now, num_missed=0)

    def next_round(self) -> "Sign":
        """Forget the gaps of the round before."""
        return replace(self, longest_gap=0.0, earlier_gap=self.longest_gap)

    def is_overdue(self, now: float, *, limit_seconds: float) -> bool:
        """Whether it is missing for longer than the limit.

        If it came back after more than that, the limit is twice that time.
        """
        gap = self.recent_gap
        limit = 2 * gap if gap > limit_seconds else limit_seconds
        return self.num_missed >= MIN_MISSED and now - self.at > limit


@dataclass(frozen=True)
class Signs:
    """What is known of one engine process."""

    server: Sign
    core: Sign
    tokens: Sign
    work: Sign
    num_tokens: float | None = None
    version: PolicyVersion | None = None
    """The weights that it had at the last look."""
    is_warm: bool = False
    """Whether it has sampled for us."""
    has_refused: bool = False
    """Whether the last look met nobody who would have answered: its process has ended, or its pod is gone."""


def first_signs(now: float) -> Signs:
    """The signs of a process that has just been found."""
    return Signs(server=Sign(now), core=Sign(now), tokens=Sign(now), work=Sign(now))


def looked(signs: Signs, look: Look | None, *, version: PolicyVersion | None, now: float) -> Signs:
    """The signs after a look at an engine with weights of `version`; None when only its server was asked."""
    signs = replace(signs, has_refused=False)
    if look is None:
        return replace(signs, server=signs.server.from_now(now))
    if version != signs.version:
        # the verification of new weights generates a token, which is not sampled for us
        signs = replace(signs, version=version, num_tokens=None)
        if version is not None:
            signs = replace(
                signs,
                core=signs.core.next_round(),
                tokens=signs.tokens.next_round(),
                work=signs.work.next_round(),
            )
    if signs.server.num_missed:
        signs = replace(
            signs,
            core=signs.core.from_now(now),
            tokens=signs.tokens.from_now(now),
            work=signs.work.from_now(now),
        )
    is_known = None not in (look.num_tokens, signs.num_tokens)
    has_moved = is_known and look.num_tokens != signs.num_tokens
    if has_moved:
        tokens = signs.tokens.seen(now)
    elif is_known and look.is_sampling:
        tokens = signs.tokens.missed()
    else:
        tokens = signs.tokens.from_now(now)
    if has_moved or (is_known and look.num_running > 0):
        work = signs.work.seen(now)
    elif is_known and look.is_paused is False:
        work = signs.work.missed()
    else:
        work = signs.work.from_now(now)
    return replace(
        signs,
        # without its gap: one that was stopped once is found as fast the next time
        server=signs.server.from_now(now),
        core=signs.core.seen(now) if look.has_core_answered or has_moved else signs.core.missed(),
        tokens=tokens,
        work=work,
        num_tokens=look.num_tokens,
        is_warm=signs.is_warm or has_moved,
    )


def unanswered(signs: Signs, *, has_refused: bool = False) -> Signs:
    """The signs after a look that the server did not answer in time, or at once in no way."""
    return replace(signs, server=signs.server.missed(), has_refused=has_refused)


def excused(signs: Signs, *, now: float) -> Signs:
    """The signs of an engine that is in a weight sync, whose own deadlines apply."""
    return replace(
        signs,
        server=signs.server.from_now(now),
        core=signs.core.from_now(now),
        tokens=signs.tokens.from_now(now),
        work=signs.work.from_now(now),
        num_tokens=None,
    )


def taken_out(signs: Signs, *, now: float) -> Signs:
    """The signs of an engine whose requests were given to others. If only its answers were late, it is given
    twice that time: the same requests would be late again."""
    return replace(signs, work=signs.work.seen(now))


def warm(signs: Signs) -> Signs:
    """The signs of an engine that has answered a call for completions."""
    return replace(signs, is_warm=True)


def why_hung(signs: Signs, *, limits: Limits, now: float) -> str:
    """Which part of the engine is hung, as a sentence about it; empty when it is not hung."""
    usual = limits.hung_after_seconds
    core_limit = usual if signs.is_warm else max(usual, limits.first_step_seconds)
    if signs.server.is_overdue(now, limit_seconds=usual):
        return "its server does not answer"
    if signs.core.is_overdue(now, limit_seconds=core_limit):
        return "its engine core does not answer"
    if signs.is_warm and signs.tokens.is_overdue(now, limit_seconds=usual):
        return "it has requests and generates nothing"
    if signs.work.is_overdue(now, limit_seconds=max(_WORK_LIMITS * usual, core_limit)):
        return "it works on none of its requests"
    return ""
