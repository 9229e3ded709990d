"""What one operator process remembers about a job between two looks. Losing it loses no decision that was
made: clocks that run against a job start anew, and are never shorter for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from grpo_api.contract.progress import Progress
from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cache import Key
from grpo_operator.observed import Signs, Trouble
from grpo_operator.plan.draft import Announcement
from grpo_operator.streak import Streak

SILENCE_SECONDS = 60.0
"""How long a trainer may be out of reach before it is said."""


@dataclass(frozen=True)
class Heard:
    """The newest report of a trainer, why there is none newer, when it gave signs of life, and whether the
    status does not say all that yet."""

    progress: Progress | None
    complaint: Trouble | None
    signs: Signs | None
    is_news: bool


@dataclass
class _Word:
    """What was heard of one attempt's trainer."""

    uid: str
    attempt: int
    progress: Progress | None = None
    signs: Signs | None = None
    complaint: Trouble | None = None
    silent_since: datetime | None = None
    is_told: bool = False
    """Whether the status says it."""
    is_overtaken: bool = False
    """Whether somebody else wrote the status before we could: theirs may be newer than ours."""


@dataclass
class _Entry:
    word: _Word | None = None
    failing: tuple[int, datetime] | None = None
    refusal: Trouble | None = None
    streak: Streak | None = None
    incarnations: tuple[str, dict[int, int]] = ("", {})
    announced: set[tuple[str, str, str]] = field(default_factory=set)


class Memory:
    """What trainers said and when, when failures were first seen, what the API server refused."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._entries.pop(key, None)

    def remember_progress(self, key: Key, progress: Progress, *, now: datetime) -> bool:
        """Keep a report; False when it says nothing new to people.

        A report older than the one before it, whose answer took longer, is dropped.
        """
        word = self._word(key, uid=progress.job_uid, attempt=progress.attempt)
        known = word.progress
        if known and (progress.step, progress.heartbeat) < (known.step, known.heartbeat):
            return False
        is_alive = known is None or _sign(known) != _sign(progress)
        changed_at = now if is_alive or word.signs is None else word.signs.changed_at
        word.signs = Signs(changed_at=changed_at, heard_at=now)
        is_news = known is None or _quiet(known) != _quiet(progress)
        is_news = is_news or word.complaint is not None or word.is_overtaken
        word.is_told = word.is_told and known == progress
        word.progress, word.complaint, word.silent_since, word.is_overtaken = progress, None, None, False
        return is_news

    def remember_complaint(self, key: Key, complaint: Trouble, *, uid: str, attempt: int) -> bool:
        """The trainer said what cannot be understood; True when this is not the complaint before it, or when
        that one was never told because somebody else wrote first."""
        word = self._word(key, uid=uid, attempt=attempt)
        if word.complaint == complaint and not word.is_overtaken:
            return False
        word.complaint, word.is_told, word.is_overtaken = complaint, False, False
        return True

    def remember_silence(self, key: Key, why: str, *, uid: str, attempt: int, now: datetime) -> bool:
        """The trainer gave no answer; True when that is to be said from now on."""
        word = self._word(key, uid=uid, attempt=attempt)
        word.silent_since = word.silent_since or now
        is_said = word.complaint is not None and not word.is_overtaken
        if (now - word.silent_since).total_seconds() < SILENCE_SECONDS or is_said:
            return False
        sentence = (
            f"the trainer has not answered the operator for {SILENCE_SECONDS:.0f} s ({why}): it may train "
            "on, but nothing is known of it"
        )
        return self.remember_complaint(
            key, Trouble("ProgressUnreachable", sentence), uid=uid, attempt=attempt
        )

    def heard(self, key: Key, *, uid: str, attempt: int) -> Heard:
        """What the trainer of this very job and attempt said."""
        word = self._word(key, uid=uid, attempt=attempt)
        is_news = not (word.is_told or word.is_overtaken)
        return Heard(word.progress, word.complaint, word.signs, is_news=is_news)

    def told(self, key: Key, progress: Progress | None, complaint: Trouble | None) -> None:
        """The status says this now; what was heard in the meantime is still to be told."""
        word = self._entries.setdefault(key, _Entry()).word
        if word is not None:
            word.is_told = (word.progress, word.complaint) == (progress, complaint)

    def overtaken(self, key: Key) -> None:
        """Somebody else wrote the job: what we heard before may be older than what they heard."""
        word = self._entries.setdefault(key, _Entry()).word
        if word is not None:
            word.is_overtaken = True

    def failures_in_a_row(self, key: Key, status: GRPOJobStatus, *, now: datetime) -> int:
        """Attempts before the current one that failed one after the other without getting on."""
        entry = self._entries.setdefault(key, _Entry())
        entry.streak = entry.streak.seen(status, now) if entry.streak else Streak.begin(status, now)
        return entry.streak.failures

    def failing_since(self, key: Key, *, attempt: int, is_failing: bool, now: datetime) -> datetime | None:
        """When a failing pod of this attempt was first seen; `now` if this is the first time."""
        entry = self._entries.setdefault(key, _Entry())
        if not is_failing:
            entry.failing = None
        elif entry.failing is None or entry.failing[0] != attempt:
            entry.failing = (attempt, now)
        return entry.failing[1] if entry.failing else None

    def is_unannounced(self, key: Key, said: Announcement, *, uid: str) -> bool:
        """True the first time, so that a plan made again is not announced again."""
        entry = self._entries.setdefault(key, _Entry())
        what = (uid, said.reason, said.key)
        is_new = what not in entry.announced
        entry.announced.add(what)
        return is_new

    def refusal(self, key: Key) -> Trouble | None:
        """Why the API server refused a child at the last try."""
        return self._entries.get(key, _Entry()).refusal

    def remember_refusal(self, key: Key, refusal: Trouble | None) -> bool:
        """Keep the outcome of a try; True when it is of another kind than the one before.

        A sentence whose numbers differ with every try is not news, or the job would be tried without rest.
        """
        entry = self._entries.setdefault(key, _Entry())
        known, entry.refusal = entry.refusal, refusal
        return (known.reason if known else "") != (refusal.reason if refusal else "")

    def highest_incarnations(
        self, key: Key, *, uid: str, seen: Iterable[tuple[int, int]]
    ) -> Mapping[int, int]:
        """By replica the highest incarnation of this very job's rollout pods ever seen, with those seen now
        as (replica, incarnation)."""
        entry = self._entries.setdefault(key, _Entry())
        known = dict(entry.incarnations[1]) if entry.incarnations[0] == uid else {}
        for replica, incarnation in seen:
            known[replica] = max(incarnation, known.get(replica, -1))
        entry.incarnations = (uid, known)
        return known

    def _word(self, key: Key, *, uid: str, attempt: int) -> _Word:
        entry = self._entries.setdefault(key, _Entry())
        if entry.word is None or (entry.word.uid, entry.word.attempt) != (uid, attempt):
            entry.word = _Word(uid, attempt)
        return entry.word


def _sign(progress: Progress) -> tuple[object, ...]:
    return progress.heartbeat, progress.step, progress.state


def _quiet(progress: Progress) -> Progress:
    return progress.model_copy(update={"heartbeat": 0})
