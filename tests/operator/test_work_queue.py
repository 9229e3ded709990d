"""The work queue: one worker per key, nothing lost, failures spaced out, and what is urgent first."""

import asyncio
from typing import Any

import pytest

from grpo_operator.backoff import Backoff
from grpo_operator.work_queue import FairQueue, Urgency, WorkQueue, is_starting, urgency_of

from .until import until

KEY, OTHER = ("default", "a"), ("default", "b")
STARTING = tuple((f"team-{index}", "new") for index in range(20))
BEGAN = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:05:00Z"
FAST = Backoff(first_seconds=0.01, limit_seconds=0.04, jitter=0.0)


class FakeHandler:
    """Records what is looked at; `gate` holds workers while it is closed."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.seen: list[tuple[str, str]] = []
        self.busy = 0
        self.most_busy = 0
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()
        self.outcomes: list[float | Exception | None] = []

    async def __call__(self, key: tuple[str, str]) -> float | None:
        self.seen.append(key)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await self.gate.wait()
        await asyncio.sleep(0)  # others continue meanwhile, as they do while a request is under way
        self.busy -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Running:
    """A queue with workers for the length of a test."""

    def __init__(self, handler: FakeHandler, *, num_workers: int = 4, num_starting: int = 2) -> None:
        self.delays: list[float] = []
        self.urgency = dict[tuple[str, str], Urgency]()
        self.queue = WorkQueue(
            handler,
            on_error=lambda key, error, delay: self.delays.append(delay),
            urgency_of=lambda key: self.urgency.get(key, Urgency.NEWS),
            backoff=FAST,
        )
        self._handler, self._num_workers, self._num_starting = handler, num_workers, num_starting

    async def __aenter__(self) -> "Running":
        self._task = asyncio.create_task(
            self.queue.run(num_workers=self._num_workers, num_starting=self._num_starting)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task

    async def add_starting(self) -> None:
        """Jobs that start, of which each worker for those has one."""
        self.urgency = dict.fromkeys(STARTING, Urgency.START)
        for key in STARTING:
            self.queue.add(key)
        await until(lambda: self._handler.busy == self._num_starting)


async def test_a_key_added_many_times_before_a_worker_is_free_is_handled_once():
    handler = FakeHandler()
    async with Running(handler) as running:
        for _ in range(10):
            running.queue.add(KEY)
        running.queue.add(OTHER)
        await until(lambda: OTHER in handler.seen)
        assert handler.seen == [KEY, OTHER]


async def test_the_oldest_waits_since_it_was_added_first_and_only_while_there_are_workers():
    now = [0.0]
    handler = FakeHandler(is_open=False)
    queue = WorkQueue(
        handler, on_error=lambda *_: None, urgency_of=lambda key: Urgency.START, monotonic=lambda: now[0]
    )
    queue.add(KEY)
    now[0] = 100.0
    working = asyncio.create_task(queue.run(num_workers=0, num_starting=0))
    await asyncio.sleep(0)
    assert queue.oldest_seconds == 0
    now[0] = 103.0
    queue.add(OTHER)
    queue.add(KEY, Urgency.NEWS)  # it is more urgent now and has waited as long
    assert (queue.num_waiting, queue.oldest_seconds) == (2, 3.0)
    await asyncio.gather(working)
    working = asyncio.create_task(queue.run(num_workers=1, num_starting=1))
    await until(lambda: handler.busy == 2)
    assert (queue.num_waiting, queue.oldest_seconds) == (0, 0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_two_workers_never_have_the_same_key_and_one_added_meanwhile_is_not_lost():
    handler = FakeHandler(is_open=False)
    async with Running(handler) as running:
        running.queue.add(KEY)
        await until(lambda: handler.busy == 1)
        running.queue.add(KEY)
        running.queue.add(KEY)
        handler.gate.set()
        await until(lambda: len(handler.seen) == 2)
        assert handler.most_busy == 1


async def test_a_slow_key_does_not_hold_up_another():
    handler = FakeHandler(is_open=False)
    async with Running(handler) as running:
        running.queue.add(KEY)
        running.queue.add(OTHER)
        await until(lambda: handler.busy == 2)
        handler.gate.set()


async def test_failures_are_retried_ever_later_and_success_forgets_them():
    handler = FakeHandler()
    handler.outcomes = [ValueError("x")] * 4
    async with Running(handler) as running:
        running.queue.add(KEY)
        await until(lambda: len(handler.seen) == 5 and not handler.busy)
        assert running.delays == [0.01, 0.02, 0.04, 0.04]
        handler.outcomes = [ValueError("again")]
        running.queue.add(KEY)
        await until(lambda: len(handler.seen) == 7)
        assert running.delays[-1] == 0.01


async def test_the_earlier_of_two_wake_ups_wins():
    handler = FakeHandler()
    async with Running(handler) as running:
        running.queue.add_after(KEY, 60)
        running.queue.add_after(KEY, 0.01)
        running.queue.add_after(KEY, 60)
        await until(lambda: handler.seen == [KEY])


async def test_a_handler_can_ask_to_be_called_again():
    handler = FakeHandler()
    handler.outcomes = [0.0, 0.01]
    async with Running(handler) as running:
        running.queue.add(KEY)
        await until(lambda: len(handler.seen) == 3)


def test_jitter_spreads_a_delay_around_its_value():
    backoff = Backoff(first_seconds=1.0, limit_seconds=60.0, jitter=0.3)
    assert backoff.delay(1, chance=0.0) == pytest.approx(0.7)
    assert backoff.delay(1, chance=0.5) == pytest.approx(1.0)
    assert backoff.delay(100, chance=0.5) == pytest.approx(60.0)


async def test_news_of_a_running_job_does_not_wait_for_jobs_that_start():
    handler = FakeHandler(is_open=False)
    async with Running(handler, num_workers=1, num_starting=2) as running:
        await running.add_starting()
        running.queue.add(KEY)
        await until(lambda: KEY in handler.seen)
        assert handler.seen == [*STARTING[:2], KEY]
        handler.gate.set()
        await until(lambda: set(handler.seen) == {*STARTING, KEY})
    assert handler.most_busy == 3


async def test_a_job_that_starts_does_not_wait_for_those_that_nothing_has_happened_to():
    handler = FakeHandler(is_open=False)
    async with Running(handler, num_workers=1, num_starting=1) as running:
        for key in STARTING:
            running.queue.add(key, Urgency.ROUTINE)
        await until(lambda: handler.busy == 1)
        running.urgency = {OTHER: Urgency.START}
        running.queue.add(OTHER)
        handler.gate.set()
        await until(lambda: OTHER in handler.seen)
        assert handler.seen[:2] == [STARTING[0], OTHER]


async def test_a_key_that_becomes_urgent_is_handled_once_and_at_once():
    handler = FakeHandler(is_open=False)
    async with Running(handler, num_workers=1, num_starting=1) as running:
        running.queue.add(OTHER, Urgency.ROUTINE)
        await until(lambda: handler.busy == 1)
        running.queue.add(KEY, Urgency.ROUTINE)
        running.queue.add(KEY, Urgency.START)
        running.queue.add(KEY, Urgency.NEWS)
        running.queue.add(KEY, Urgency.ROUTINE)
        await until(lambda: handler.seen == [OTHER, KEY])
        handler.gate.set()
        await until(lambda: handler.busy == 0)
        running.queue.add(STARTING[0], Urgency.ROUTINE)
        await until(lambda: STARTING[0] in handler.seen)
        assert handler.seen == [OTHER, KEY, STARTING[0]]


async def test_what_became_urgent_while_a_worker_had_the_key_is_urgent_afterwards():
    handler = FakeHandler(is_open=False)
    async with Running(handler, num_workers=1, num_starting=1) as running:
        running.queue.add(KEY, Urgency.ROUTINE)
        await until(lambda: handler.busy == 1)
        for key in STARTING:
            running.queue.add(key, Urgency.START)
        running.queue.add(KEY, Urgency.NEWS)
        handler.gate.set()
        await until(lambda: handler.seen.count(KEY) == 2)
        assert handler.seen.index(KEY, 1) < 5  # before most of those that start


async def order_of(*added: tuple[Urgency, str]) -> list[str]:
    """In which order keys, as NAMESPACE/NAME, are taken that were added in this one."""
    queue = FairQueue()
    for urgency, key in added:
        namespace, name = key.split("/")
        queue.put(urgency, (namespace, name))
    return ["/".join((await queue.get())[1]) for _ in added]


async def test_namespaces_have_one_job_each_in_turn_and_within_one_the_first_comes_first():
    keys = ("a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "c/1")
    taken = await order_of(*((Urgency.NEWS, key) for key in keys))
    assert taken == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3", "a/4"]


async def test_urgency_comes_before_turns():
    start, routine = Urgency.START, Urgency.ROUTINE
    taken = await order_of((routine, "b/1"), (start, "a/1"), (start, "a/2"), (routine, "a/3"))
    assert taken == ["a/1", "a/2", "b/1", "a/3"]


@pytest.mark.parametrize("urgency", Urgency)
async def test_a_namespace_with_500_jobs_delays_a_job_of_another_one_by_one_job(urgency):
    """Counted in jobs, not in seconds: every job takes the handler as long."""
    handler, num = FakeHandler(), 500
    crowd = [("crowded", f"job-{index}") for index in range(num)]
    async with Running(handler, num_workers=3, num_starting=3) as running:
        running.urgency = dict.fromkeys([*crowd, KEY], urgency)
        for key in crowd:
            running.queue.add(key)
        await until(lambda: handler.busy == 2)  # the third is for others
        before = len(handler.seen)
        running.queue.add(KEY)
        await until(lambda: KEY in handler.seen)
        assert handler.seen.index(KEY) - before <= 1
        await until(lambda: len(handler.seen) == num + 1)  # and nobody is left out


class HangingHandler(FakeHandler):
    """Hangs for as long as the test lasts with each job of the namespace `slow`."""

    async def __call__(self, key: tuple[str, str]) -> float | None:
        if key[0] == "slow":
            self.seen.append(key)
            await asyncio.Event().wait()
        return await super().__call__(key)


@pytest.mark.parametrize("urgency", [Urgency.NEWS, Urgency.START])
async def test_a_namespace_whose_jobs_all_hang_leaves_a_worker_to_others(urgency):
    handler = HangingHandler()
    slow = [("slow", f"job-{index}") for index in range(20)]
    others = [("a", f"job-{index}") for index in range(20)] + [("b", "job-0")]
    async with Running(handler, num_workers=3, num_starting=3) as running:
        running.urgency = dict.fromkeys([*slow, *others], urgency)
        for key in slow:
            running.queue.add(key)
        await until(lambda: len(handler.seen) == 2)
        for key in others:
            running.queue.add(key)
        await until(lambda: len(handler.seen) == 2 + len(others))
        assert handler.seen == [*slow[:2], others[0], others[-1], *others[1:-1]]


@pytest.mark.parametrize("urgency", [Urgency.NEWS, Urgency.START])
async def test_a_namespace_that_is_alone_has_all_workers_but_one(urgency):
    handler = FakeHandler(is_open=False)
    jobs = [("alone", f"job-{index}") for index in range(20)]
    async with Running(handler, num_workers=4, num_starting=4) as running:
        running.urgency = dict.fromkeys(jobs, urgency)
        for key in jobs:
            running.queue.add(key)
        await until(lambda: handler.busy == 3)
        handler.gate.set()
        await until(lambda: handler.seen == jobs and not handler.busy)
        assert handler.most_busy == 3


async def test_a_worker_that_is_free_goes_to_the_namespace_that_has_the_fewest():
    queue = FairQueue()
    queue.limit(3)
    for index in range(6):
        queue.put(Urgency.NEWS, ("a", str(index)))
    taken = [(await queue.get())[1] for _ in range(3)]
    for index in range(3):
        queue.put(Urgency.NEWS, ("b", str(index)))
    queue.done(taken[0])
    after = [(await queue.get())[1] for _ in range(3)]
    assert after == [("b", "0"), ("b", "1"), ("a", "3")]  # two of each, and the first whose turn it is


async def test_what_waits_only_because_its_namespace_has_enough_workers_comes_when_one_is_done():
    queue = FairQueue()
    queue.limit(1)
    queue.put(Urgency.NEWS, ("a", "0"))
    queue.put(Urgency.NEWS, ("a", "1"))
    _, first = await queue.get()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(first)
    assert await waiting == (Urgency.NEWS, ("a", "1"))


async def test_jobs_that_come_again_and_again_leave_no_namespace_out():
    handler = FakeHandler()
    handler.outcomes = [0.0] * 50
    async with Running(handler, num_workers=1) as running:
        for key in (("a", "1"), ("b", "1"), ("c", "1")):
            running.queue.add(key)
        await until(lambda: len(handler.seen) >= 50)
    counts = [handler.seen[:48].count((namespace, "1")) for namespace in "abc"]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("status", "urgency"),
    [
        ({"phase": "Running", "step": 3}, Urgency.NEWS),
        ({"phase": "Restarting", "step": 3}, Urgency.NEWS),
        ({"phase": "Running", "step": 0}, Urgency.START),
        ({"phase": "Succeeded", "step": 3}, Urgency.START),
        ({}, Urgency.START),
    ],
)
def test_what_happens_to_a_job_that_has_trained_and_goes_on_is_news(status, urgency):
    assert urgency_of({"status": status}) is urgency
    assert urgency_of(None) is Urgency.START


async def test_what_is_due_does_not_wait_behind_the_routine():
    handler = FakeHandler(is_open=False)
    async with Running(handler, num_workers=1, num_starting=1) as running:
        await running.add_starting()
        running.queue.add_after(KEY, 0.01)
        running.queue.add(KEY, Urgency.ROUTINE)
        await until(lambda: handler.seen == [STARTING[0], KEY])
        handler.gate.set()


async def test_an_error_that_ends_the_work_is_raised_and_not_retried():
    handler = FakeHandler()
    handler.outcomes = [LookupError("gone")]
    queue = WorkQueue(handler, on_error=lambda *_: None, ends_with=(LookupError,), backoff=FAST)
    queue.add(KEY)
    with pytest.raises(LookupError, match="gone"):
        await queue.run(num_workers=2, num_starting=1)
    assert handler.seen == [KEY]


def status(phase: str, *, step: int = 0, engines: tuple[str, str] | None = None) -> dict[str, Any]:
    """`engines` is the status of RolloutReady and since when it has it."""
    found: dict[str, Any] = {"phase": phase, "step": step, "startTime": BEGAN}
    if engines is not None:
        value, since = engines
        found["conditions"] = [{"type": "RolloutReady", "status": value, "lastTransitionTime": since}]
    return {"status": found}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (None, Urgency.START),
        ({}, Urgency.START),
        (status("Running"), Urgency.START),
        (status("Running", step=1), Urgency.NEWS),
        (status("Restarting", step=1), Urgency.NEWS),
        (status("Succeeded", step=1), Urgency.START),
        (status("Failed", step=1), Urgency.START),
    ],
)
def test_only_a_job_that_has_made_a_step_and_has_not_ended_is_news(
    job: dict[str, Any] | None, expected: Urgency
) -> None:
    assert urgency_of(job) is expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (status("Pending"), True),
        (status("Starting"), True),
        (status("Starting", step=1), False),
        # the trainer runs, and not all engines have been admitted yet
        (status("Running", engines=("False", BEGAN)), True),
        (status("Running", engines=("True", LATER)), False),
        # some were lost since
        (status("Running", engines=("False", LATER)), False),
        (status("Running"), False),
        (status("Failed"), False),
        (status("Failed", engines=("False", BEGAN)), False),
        (None, False),
    ],
)
def test_a_job_is_starting_until_all_engines_were_admitted_once(
    job: dict[str, Any] | None, expected: bool
) -> None:
    assert is_starting(job) is expected
