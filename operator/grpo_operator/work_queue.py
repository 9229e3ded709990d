"""The work queue: jobs to reconcile, each by one worker at a time, urgent ones first, namespaces in turn,
with backoff after a failure."""

import asyncio
import math
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from enum import IntEnum

from grpo_api.v1alpha1.status import ConditionStatus, ConditionType, Phase
from grpo_operator.backoff import Backoff
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.cache import Key


class Urgency(IntEnum):
    """How soon a job is reconciled when others wait too; the lowest first."""

    NEWS = 0
    """Something happened to a job that has trained."""
    START = 1
    """A job that has not made a step yet."""
    ROUTINE = 2
    """Nothing is known to have happened."""


Handler = Callable[[Key], Awaitable[float | None]]
"""Reconciles one job; returns in how many seconds to do so again, or None."""
OnError = Callable[[Key, Exception, float], None]
"""Called with each failure and the delay before the next try."""


class FairQueue:
    """Keys that wait for a worker. Of the most urgent ones the namespace has its turn that has the fewest
    workers, those with as many in turn, and within a namespace the first comes first: a namespace with
    hundreds of jobs delays another one by a single job.

    No namespace has more workers than `limit` says, however many are free: its handlers may hang, and then
    those of another one have the rest.
    """

    def __init__(self) -> None:
        self._most: float = math.inf
        self._turns: defaultdict[Urgency, dict[str, deque[Key]]] = defaultdict(dict)
        """The keys of each namespace, with the namespaces in the order of their turns."""
        self._num_busy: Counter[str] = Counter()
        """How many keys of each namespace have been taken and are not done."""
        self._num_ready = asyncio.Semaphore(0)
        """How many keys may be taken now."""

    def limit(self, num: int) -> None:
        """Give a namespace at most this many workers, before the first of them comes."""
        self._most = num
        namespaces = {namespace for turns in self._turns.values() for namespace in turns}
        ready = (min(self._num_waiting(each), self._num_left(each)) for each in namespaces)
        self._num_ready = asyncio.Semaphore(int(sum(ready)))

    def put(self, urgency: Urgency, key: Key) -> None:
        """Add a key. A namespace that had none has its turn after all others."""
        namespace = key[0]
        self._turns[urgency].setdefault(namespace, deque()).append(key)
        if self._num_waiting(namespace) <= self._num_left(namespace):
            self._num_ready.release()

    async def get(self) -> tuple[Urgency, Key]:
        """Take the key whose turn it is; waits while there is none. Its worker is free after `done`."""
        await self._num_ready.acquire()
        urgency, namespace = self._next()
        turns = self._turns[urgency]
        keys = turns.pop(namespace)
        key = keys.popleft()
        if keys:
            turns[namespace] = keys  # behind the others
        self._num_busy[namespace] += 1
        return urgency, key

    def done(self, key: Key) -> None:
        """The worker that has taken this key is free again."""
        namespace = key[0]
        self._num_busy[namespace] -= 1
        if not self._num_busy[namespace]:
            del self._num_busy[namespace]
        if self._num_waiting(namespace) >= self._num_left(namespace):
            self._num_ready.release()  # the key that had to wait for it

    def _next(self) -> tuple[Urgency, str]:
        """The most urgent keys and the namespace whose turn it is among them. There is one."""
        for urgency in Urgency:
            free = [namespace for namespace in self._turns[urgency] if self._num_left(namespace) > 0]
            if free:
                return urgency, min(free, key=lambda namespace: self._num_busy[namespace])
        raise AssertionError("no key may be taken")

    def _num_waiting(self, namespace: str) -> int:
        return sum(len(turns.get(namespace, ())) for turns in self._turns.values())

    def _num_left(self, namespace: str) -> float:
        """How many workers more the namespace may have."""
        return self._most - self._num_busy[namespace]


class WorkQueue:
    """Keys of jobs. A key that is added while a worker has it is handled once more afterwards.

    News has workers of its own, so that it waits neither for jobs that start nor for those that nothing has
    happened to. No namespace waits for all the jobs of another one, also where each of those hangs in a slow
    webhook: of both kinds of workers it leaves one to the others. `urgency_of` says how urgent a job is when
    it is added, and `ends_with` names errors that end the work.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        on_error: OnError,
        ends_with: tuple[type[Exception], ...] = (),
        urgency_of: Callable[[Key], Urgency] = lambda key: Urgency.NEWS,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handler = handler
        self._on_error = on_error
        self._ends_with = ends_with
        self._urgency_of = urgency_of
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._monotonic = monotonic
        self._news = FairQueue()
        self._others = FairQueue()
        self._waiting: dict[Key, Urgency] = {}
        """A key is in a queue once more for each time that it became more urgent; this says which counts."""
        self._since: dict[Key, float] = {}
        """When each of them was added, the oldest first."""
        self._busy: set[Key] = set()
        self._again: dict[Key, Urgency] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    @property
    def num_waiting(self) -> int:
        """How many jobs wait for a worker."""
        return len(self._waiting)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest of them has waited while there were workers; 0 when none waits."""
        now = self._monotonic()
        return now - next(iter(self._since.values()), now)

    def add(self, key: Key, urgency: Urgency | None = None) -> None:
        """Handle this job as soon as a worker is free; by default with the urgency that it has now."""
        wanted = self._urgency_of(key) if urgency is None else urgency
        # What is due at a certain time must not wait behind the routine.
        timer = None if wanted is Urgency.ROUTINE else self._timers.pop(key, None)
        if timer:
            timer.cancel()
        waiting = self._again if key in self._busy else self._waiting
        known = waiting.get(key)
        if known is not None and known <= wanted:
            return
        waiting[key] = wanted
        if waiting is self._waiting:
            self._since.setdefault(key, self._monotonic())
            ready = self._news if wanted is Urgency.NEWS else self._others
            ready.put(wanted, key)

    def add_after(self, key: Key, delay_seconds: float) -> None:
        """Handle this job after a delay, or earlier when it is added meanwhile."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_seconds
        known = self._timers.get(key)
        if known:
            if known.when() <= due:
                return
            known.cancel()
        self._timers[key] = loop.call_at(due, self._add_due, key)

    def _add_due(self, key: Key) -> None:
        del self._timers[key]
        self.add(key)

    async def run(self, *, num_workers: int, num_starting: int) -> None:
        """Work until cancelled: `num_workers` on news, and `num_starting` on everything else. Raises what
        `ends_with` names."""
        self._since = dict.fromkeys(self._since, self._monotonic())
        self._news.limit(max(1, num_workers - 1))
        self._others.limit(max(1, num_starting - 1))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(num_workers):
                    group.create_task(self._work(self._news))
                for _ in range(num_starting):
                    group.create_task(self._work(self._others))
        except ExceptionGroup as found:
            raise found.exceptions[0] from None

    async def _work(self, ready: FairQueue) -> None:
        while True:
            urgency, key = await ready.get()
            try:
                if self._waiting.get(key) is urgency:
                    await self._take(key)
            finally:
                ready.done(key)

    async def _take(self, key: Key) -> None:
        del self._waiting[key], self._since[key]
        self._busy.add(key)
        try:
            await self._handle(key)
        finally:
            self._busy.discard(key)
            again = self._again.pop(key, None)
            if again is not None:
                self.add(key, again)

    async def _handle(self, key: Key) -> None:
        try:
            requeue_after = await self._handler(key)
        except self._ends_with:
            raise
        except Exception as error:  # every other failure of one job is retried with backoff
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
            delay = self._backoff.delay(failures, chance=self._chance())
            self._on_error(key, error, delay)
            self.add_after(key, delay)
            return
        self._failures.pop(key, None)
        if requeue_after is not None:
            self.add_after(key, requeue_after)


def urgency_of(job: KubeObject | None) -> Urgency:
    """What happens to a job that has made a step is news, also while it starts again. One that is yet to make
    its first step, has ended or is gone can wait."""
    status = (job or {}).get("status", {})
    is_over = status.get("phase") in (Phase.SUCCEEDED, Phase.FAILED)
    return Urgency.NEWS if status.get("step", 0) > 0 and not is_over else Urgency.START


def is_starting(job: KubeObject | None) -> bool:
    """Whether the pods of a job are being made for the first time, and change many times within a second:
    until its trainer runs and all its engines have been admitted once."""
    status = (job or {}).get("status", {})
    if status.get("phase") == Phase.RUNNING:
        return _is_without_engines_so_far(status)
    return status.get("phase") in (Phase.PENDING, Phase.STARTING) and urgency_of(job) is Urgency.START


def _is_without_engines_so_far(status: KubeObject) -> bool:
    """Whether RolloutReady has been False since the job began."""
    return any(
        (known["type"], known["status"]) == (ConditionType.ROLLOUT_READY, ConditionStatus.FALSE)
        and known["lastTransitionTime"] == status.get("startTime")
        for known in status.get("conditions", ())
    )
