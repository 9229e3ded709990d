"""What one operator process remembers about a job between two reconciles.

A new process starts with an empty state and loses no decision by it: what was decided is in the status, and
clocks that run against a job start again, so they never run out early.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from grpo_api.contract.progress import Progress
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.judge.clocks import signs_of_life
from grpo_api.judge.engines import LONGEST_GAP_SECONDS
from grpo_operator.backoff import Backoff
from grpo_operator.children.names import rollout_position, rollout_slot
from grpo_operator.observe.cache import ChildName, Key
from grpo_operator.observe.image_build import other_build
from grpo_operator.observe.observed import (
    EarlyEnd,
    JobAndPods,
    Liveness,
    OtherBuild,
    Refusal,
    Remembered,
    TrainerReport,
)

UNREACHABLE_SECONDS = 60.0
"""How long a trainer may give no answer before the status says so."""
OLD_SECONDS = 60.0
"""Age from which a report does not say what the trainer does now. Each trainer is asked every few seconds."""
EARLY_SECONDS = 60.0
"""Pods that others take away before they are this old: from the second in a row, the next is made with a
pause."""
CONFLICTS = Backoff(first_seconds=0.2, limit_seconds=60.0)
"""Pause between tries, from the second conflict in a row on. The first brings the newer state of the job, and
the next try follows at once."""
REFUSED = Backoff(first_seconds=10.0, limit_seconds=138.0)
"""Pause between two tries of a child that the API server refuses; with the jitter at most three minutes."""
NO_QUEUE = Backoff(first_seconds=5.0, limit_seconds=23.0)
"""The same of a Workload while Kueue is not there; with the jitter at most half a minute. Nothing tells the
operator of its return."""
ASK_AGAIN_SECONDS = 60.0
"""How long after the API server had no such child it is asked again for one that a person may restore."""


@dataclass
class _Entry:
    """What is remembered about one job."""

    uid: str = ""
    report: TrainerReport = field(default_factory=TrainerReport)
    failing: tuple[int, datetime] | None = None
    """(attempt, when its first failing pod was seen)."""
    refusal: Refusal | None = None
    num_refusals: int = 0
    """Tries of the same child in a row that were refused."""
    try_again_at: datetime | None = None
    """When the child that was refused is tried again."""
    highest_incarnations: dict[int, int] = field(default_factory=dict)
    """The highest incarnation by replica."""
    found_engines: frozenset[tuple[int, int]] | None = None
    """(replica, incarnation) of each that was there at the first look; None before it."""
    seen_pods: frozenset[str] = frozenset()
    """Rollout pods that were ever seen, as long as one of the same engine is there."""
    children: dict[ChildName, datetime | None] = field(default_factory=dict)
    """Each child that was ever shown or asked for, and when the API server said that it has none; None while
    it may exist."""
    other_builds: dict[int, OtherBuild] = field(default_factory=dict)
    """The newest pod of another build by replica."""
    alive: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """Pods at the last look, and those made since: slot and creation by name."""
    early_ends: dict[str, EarlyEnd] = field(default_factory=dict)
    """Early ends by the name that `_slot_of` gives."""
    num_conflicts: int = 0
    """Writes of the status in a row that met a newer state of the job."""
    tokens_made_at: datetime | None = None
    """When this process made the Secret, or met it when it tried to."""
    told_notes: str | None = None
    undeletable: str = ""
    """Why the API server did not let this operator delete the job."""
    written_events: set[tuple[str, str, str]] = field(default_factory=set)
    """(uid of the job, reason, key) of each."""


class ProcessState:
    """What the trainers reported and when, when failures were first seen, what the API server refused."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def forget(self, key: Key) -> None:
        """Drop everything about a job that is gone."""
        self._entries.pop(key, None)

    def remember_progress(self, key: Key, progress: Progress, *, now: datetime) -> bool:
        """Keep a progress report. Returns whether the status should be updated from it.

        An answer that took so long that a newer report has come before it is dropped.
        """
        report = self.report(key, uid=progress.job_uid, attempt=progress.attempt)
        known = report.progress
        if known and (progress.step, progress.heartbeat) < (known.step, known.heartbeat):
            return False
        has_changed = known is None or signs_of_life(known) != signs_of_life(progress)
        is_news = known is None or _without_heartbeat(known) != _without_heartbeat(progress)
        self._entry(key).report = TrainerReport(
            uid=progress.job_uid,
            attempt=progress.attempt,
            progress=progress,
            liveness=_liveness(report.liveness, has_changed=has_changed, now=now),
            absence=report.absence.updated(progress, now=now.timestamp()),
            hung_since={
                engine.instance: report.hung_since.get(engine.instance, now)
                for engine in progress.engines.hung or ()
            },
            is_written=report.is_written and known == progress,
        )
        return is_news or report.problem is not None or report.is_superseded

    def remember_report_problem(self, key: Key, problem: ReasonMessage, *, uid: str, attempt: int) -> bool:
        """Keep why the trainer's progress is not known. Returns whether the status should be updated: when
        it is another problem than before, or when another operator has written the status since."""
        report = self.report(key, uid=uid, attempt=attempt)
        if report.problem == problem and not report.is_superseded:
            return False
        self._entry(key).report = replace(report, problem=problem, is_written=False, is_superseded=False)
        return True

    def remember_no_answer(self, key: Key, why: str, *, uid: str, attempt: int, now: datetime) -> bool:
        """Note that the trainer gave no answer. Returns whether the status should be updated, which is so
        once it has not answered for `UNREACHABLE_SECONDS`."""
        report = self.report(key, uid=uid, attempt=attempt)
        since = report.silent_since or now
        self._entry(key).report = replace(report, silent_since=since)
        has_problem = report.problem is not None and not report.is_superseded
        if (now - since).total_seconds() < UNREACHABLE_SECONDS or has_problem:
            return False
        message = (
            f"the trainer has not answered the operator for {UNREACHABLE_SECONDS:.0f} s ({why}): it may "
            "still train, but its progress is not known"
        )
        problem = ReasonMessage(Reason.PROGRESS_UNREACHABLE, message)
        return self.remember_report_problem(key, problem, uid=uid, attempt=attempt)

    def mark_written(self, key: Key, written: TrainerReport) -> None:
        """The status has been updated from this report; what was reported since is still news."""
        report = self._entry(key).report
        is_same = (report.progress, report.problem) == (written.progress, written.problem)
        self._entry(key).report = replace(report, is_written=is_same)
        self._entry(key).num_conflicts = 0

    def mark_told(self, key: Key, notes: str) -> None:
        """The condition Ready has had these notes of ours."""
        self._entry(key).told_notes = notes

    def remember_conflict(self, key: Key, *, chance: float) -> float:
        """The status could not be written, because the job has changed. Returns in how many seconds to try
        again."""
        self.mark_superseded(key)
        entry = self._entry(key)
        entry.num_conflicts += 1
        return CONFLICTS.delay(entry.num_conflicts - 1, chance=chance) if entry.num_conflicts > 1 else 0.0

    def mark_made(self, key: Key, pods: Iterable[str], *, now: datetime) -> None:
        """These pods were made. One that the next look does not show has been taken away already."""
        for name in pods:
            self._entry(key).alive.setdefault(name, (_slot_of(name), now))

    def mark_deleted(self, key: Key, pods: Iterable[str]) -> None:
        """This operator has deleted these pods: nobody has taken them away."""
        for name in pods:
            self._entry(key).alive.pop(name, None)

    def mark_undeletable(self, key: Key, why: str) -> bool:
        """The API server does not let this operator delete the job itself. Returns whether that is another
        reason than before."""
        entry = self._entry(key)
        known, entry.undeletable = entry.undeletable, why
        return known != why

    def mark_tokens_made(self, key: Key, *, now: datetime) -> None:
        """The Secret of the job exists."""
        self._entry(key).tokens_made_at = now

    def mark_superseded(self, key: Key) -> None:
        """Another operator has written the job: what this one read before may be older than what the
        other knows."""
        entry = self._entry(key)
        entry.report = replace(entry.report, is_superseded=True)

    def remember_refusal(self, key: Key, refusal: Refusal | None, *, now: datetime, chance: float) -> bool:
        """Keep the outcome of making the children. Returns whether the reason is another than before.

        The message alone is no news: its numbers may differ with every try, and a job that is reconciled at
        each difference would be tried without pause. `chance` in [0, 1) spreads the next tries of many jobs.
        """
        entry = self._entry(key)
        known, entry.refusal = entry.refusal, refusal
        is_same_child = known is not None and refusal is not None and known.child == refusal.child
        entry.num_refusals = entry.num_refusals + 1 if is_same_child else int(refusal is not None)
        has_no_queue = refusal is not None and refusal.why.reason == Reason.QUEUE_UNAVAILABLE
        pauses = NO_QUEUE if has_no_queue else REFUSED
        delay = pauses.delay(entry.num_refusals, chance=chance) if refusal else 0.0
        entry.try_again_at = now + timedelta(seconds=delay) if refusal else None
        return (known.why.reason if known else "") != (refusal.why.reason if refusal else "")

    def refused_child(self, key: Key) -> str:
        """Name of the child that was refused at the last try; empty where none was."""
        refusal = self._entry(key).refusal
        return refusal.child if refusal else ""

    def seconds_until_next_try(self, key: Key, *, now: datetime) -> float:
        """How long what was refused is not tried again; 0 where nothing was refused."""
        until = self._entry(key).try_again_at
        return max(0.0, (until - now).total_seconds()) if until else 0.0

    def is_new_event(self, key: Key, event: tuple[str, str], *, uid: str) -> bool:
        """Whether this process has not written this Event (reason, key) yet; from now on it has. A plan that
        is made again must not write its Events again."""
        written = self._entry(key).written_events
        is_new = (uid, *event) not in written
        written.add((uid, *event))
        return is_new

    def remember_pods(self, key: Key, found: JobAndPods, *, now: datetime) -> Remembered:
        """Take in how a job and its pods look now, and return everything that is remembered about the job."""
        job, attempt = found.job, found.job.status.attempt
        self._begin(key, uid=job.uid)
        if job.status.is_held_back:
            # The same attempt comes again with processes that count their heartbeats from the start.
            self._entry(key).report = TrainerReport(uid=job.uid, attempt=attempt)
        if job.status.is_suspended and not found.rollouts:
            # the engines that come after a suspension take nobody's place
            entry = self._entry(key)
            entry.highest_incarnations, entry.found_engines = {}, frozenset()
        is_failing = any(pod.has_failed for pod in found.trainers if pod.position[0] == attempt)
        positions = frozenset(engine.position for engine in found.rollouts)
        return Remembered(
            report=_as_of(self.report(key, uid=job.uid, attempt=attempt), now=now),
            failing_since=self._failing_since(key, attempt=attempt, is_failing=is_failing, now=now),
            highest_incarnations=self._highest_incarnations(key, seen=positions),
            found_engines=self._found_engines(key, shown=positions),
            seen_pods=self._seen_pods(key, found, shown=positions),
            other_builds=self._other_builds(key, found, now=now),
            early_ends=self._early_ends(key, found, now=now),
            refusal=self._entry(key).refusal,
            tokens_made_at=self._entry(key).tokens_made_at,
            told_notes=self._entry(key).told_notes,
            undeletable=self._entry(key).undeletable,
        )

    def _begin(self, key: Key, *, uid: str) -> None:
        """Nothing that is remembered of a job is about another that was made anew under its name."""
        entry = self._entry(key)
        if entry.uid not in ("", uid):
            entry = self._entries[key] = _Entry(report=entry.report)  # a report says itself whose it is
        entry.uid = uid

    def missing_children(
        self,
        key: Key,
        *,
        shown: frozenset[ChildName],
        expected: frozenset[ChildName],
        awaited: frozenset[ChildName],
        now: datetime,
    ) -> tuple[ChildName, ...]:
        """Children that were seen before or that are `expected`, that are not `shown` now, and of which it is
        not known that they are gone. Those that a person is `awaited` to restore may come back: they are
        asked for again after `ASK_AGAIN_SECONDS`."""
        entry = self._entry(key)
        entry.children = {
            child: gone_at
            for child, gone_at in entry.children.items()
            if gone_at is None or child in expected  # the others are never asked for again
        } | dict.fromkeys(shown)
        unseen = (expected | entry.children.keys()) - shown

        def may_exist(child: ChildName) -> bool:
            gone_at = entry.children.get(child)
            return gone_at is None or (
                child in awaited and (now - gone_at).total_seconds() >= ASK_AGAIN_SECONDS
            )

        return tuple(sorted(filter(may_exist, unseen), key=lambda child: (child[0].plural, child[1])))

    def mark_gone(self, key: Key, child: ChildName, *, now: datetime) -> None:
        """The API server has no such child of the job."""
        self._entry(key).children[child] = now

    def _failing_since(self, key: Key, *, attempt: int, is_failing: bool, now: datetime) -> datetime | None:
        entry = self._entry(key)
        if not is_failing:
            entry.failing = None
        elif entry.failing is None or entry.failing[0] != attempt:
            entry.failing = (attempt, now)
        return entry.failing[1] if entry.failing else None

    def _highest_incarnations(self, key: Key, *, seen: Iterable[tuple[int, int]]) -> Mapping[int, int]:
        highest = self._entry(key).highest_incarnations
        for replica, incarnation in seen:
            highest[replica] = max(incarnation, highest.get(replica, -1))
        return dict(highest)

    def _found_engines(self, key: Key, *, shown: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        entry = self._entry(key)
        if entry.found_engines is None:
            entry.found_engines = shown
        return entry.found_engines

    def _seen_pods(self, key: Key, found: JobAndPods, *, shown: frozenset[tuple[int, int]]) -> frozenset[str]:
        entry = self._entry(key)
        kept = {name for name in entry.seen_pods if rollout_position(name) in shown}
        entry.seen_pods = frozenset(kept | {pod.name for engine in found.rollouts for pod in engine.pods})
        return entry.seen_pods

    def _other_builds(self, key: Key, found: JobAndPods, *, now: datetime) -> Mapping[int, OtherBuild]:
        """Outlives the pods, which are deleted: without it they would be made again without pause."""
        known = self._entry(key).other_builds
        for pod in (member for engine in found.rollouts for member in engine.pods):
            why = other_build(pod, found.job.status)
            if why is not None:
                known[pod.position[0]] = OtherBuild(seen_at=now, message=why)
        return dict(known)

    def _early_ends(self, key: Key, found: JobAndPods, *, now: datetime) -> Mapping[str, EarlyEnd]:
        entry = self._entry(key)
        pods = [*found.trainers, *(member for engine in found.rollouts for member in engine.pods)]
        alive = {pod.name: (_slot_of(pod.name), pod.created_at or now) for pod in pods if pod.is_alive}
        by_themselves = {pod.name for pod in pods if pod.is_over}
        for name, (slot, created_at) in entry.alive.items():
            if name in alive or name in by_themselves:
                continue
            seconds = max(0.0, (now - created_at).total_seconds())
            known = entry.early_ends.pop(slot, None)
            if seconds < EARLY_SECONDS:
                entry.early_ends[slot] = EarlyEnd((known.num if known else 0) + 1, name, now, seconds)
        for slot, created_at in alive.values():
            if (now - created_at).total_seconds() >= EARLY_SECONDS:
                entry.early_ends.pop(slot, None)
        entry.alive = alive
        return dict(entry.early_ends)

    def report(self, key: Key, *, uid: str, attempt: int) -> TrainerReport:
        """The report of this very job and attempt; an empty one replaces that of any other."""
        entry = self._entry(key)
        if (entry.report.uid, entry.report.attempt) != (uid, attempt):
            entry.report = TrainerReport(uid=uid, attempt=attempt)
        return entry.report

    def _entry(self, key: Key) -> _Entry:
        return self._entries.setdefault(key, _Entry())


def _slot_of(pod: str) -> str:
    """What a pod and the one that takes its place have in common: a trainer pod has one name in an attempt,
    the pods of a replica have the replica."""
    position = rollout_position(pod)
    return rollout_slot(position[0]) if position else pod


def _liveness(known: Liveness | None, *, has_changed: bool, now: datetime) -> Liveness:
    if known is None or has_changed:
        return Liveness(changed_at=now, answered_at=now)
    gap = (now - known.answered_at).total_seconds()
    quiet_seconds = known.quiet_seconds + min(max(gap, 0.0), LONGEST_GAP_SECONDS)
    return replace(known, answered_at=now, quiet_seconds=quiet_seconds)


def _as_of(report: TrainerReport, *, now: datetime) -> TrainerReport:
    """The report; one that is old becomes that of a trainer that does not answer, because this process may
    have been suspended while the trainer continued."""
    heard = report.liveness
    if heard is None or report.silent_since or (now - heard.answered_at).total_seconds() <= OLD_SECONDS:
        return report
    return replace(report, silent_since=heard.answered_at)


def _without_heartbeat(progress: Progress) -> Progress:
    return progress.model_copy(update={"heartbeat": 0})
