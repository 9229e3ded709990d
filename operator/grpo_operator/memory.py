"""What one operator process remembers about a job between two looks. Losing it changes no decision."""

from dataclasses import dataclass
from datetime import datetime

from grpo_api.contract.progress import Progress
from grpo_operator.cache import Key
from grpo_operator.observed import Trouble


@dataclass
class _Entry:
    progress: Progress | None = None
    failing: tuple[int, datetime] | None = None
    refusal: Trouble | None = None
    complaint: str = ""


class Memory:
    """Reports of trainers, when failures were first seen, what the API server refused, what was logged."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._entries.pop(key, None)

    def remember_progress(self, key: Key, progress: Progress) -> bool:
        """Keep a report; False when it says nothing new to people."""
        entry = self._entries.setdefault(key, _Entry())
        known, entry.progress = entry.progress, progress
        quiet = {"heartbeat": 0}
        return known is None or known.model_copy(update=quiet) != progress.model_copy(update=quiet)

    def progress_of(self, key: Key, *, uid: str, attempt: int) -> Progress | None:
        """The newest report of this very job and attempt."""
        told = self._entries.get(key, _Entry()).progress
        return told if told and (told.job_uid, told.attempt) == (uid, attempt) else None

    def failing_since(self, key: Key, *, attempt: int, is_failing: bool, now: datetime) -> datetime | None:
        """When a failing pod of this attempt was first seen; `now` if this is the first time."""
        entry = self._entries.setdefault(key, _Entry())
        if not is_failing:
            entry.failing = None
        elif entry.failing is None or entry.failing[0] != attempt:
            entry.failing = (attempt, now)
        return entry.failing[1] if entry.failing else None

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

    def remember_complaint(self, key: Key, complaint: str) -> bool:
        """True when this complaint is not the one before it, so that each is logged once."""
        entry = self._entries.setdefault(key, _Entry())
        known, entry.complaint = entry.complaint, complaint
        return known != complaint
