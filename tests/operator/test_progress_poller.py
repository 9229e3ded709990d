"""Polling: only reports of the right trainer count, and a bad answer does no harm."""

import asyncio
import json
from collections import Counter
from datetime import timedelta
from operator import sub
from typing import Any

import pytest

from grpo_api.v1alpha1.status import GRPOJobStatus
from grpo_operator.cluster import errors
from grpo_operator.cluster.kinds import JOBS, PODS
from grpo_operator.observe.cache import Cache
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.observe.progress_poller import (
    MAX_BYTES,
    POLLS_IN_FLIGHT,
    POLLS_IN_FLIGHT_OF_A_NAMESPACE,
    Poller,
    PollOutcome,
)

from .fake_cluster import NOW, UID, FakeCluster, report

KEY = ("default", "copy")


class FakeTrainer:
    """Answers /progress with `body`, or with an error."""

    def __init__(self) -> None:
        self.body: bytes | Exception = b""
        self.paths: list[str] = []

    async def __call__(self, pod: dict[str, Any], path: str) -> bytes:
        self.paths.append(path)
        if isinstance(self.body, Exception):
            raise self.body
        return self.body


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()


@pytest.fixture
def woken() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def state() -> ProcessState:
    return ProcessState()


def a_pod(*, attempt: int = 1, phase: str = "Running") -> dict[str, Any]:
    job = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "name": "copy", "uid": UID}
    return {
        "metadata": {
            "name": f"copy-abc123-trainer-a{attempt}-0",
            "namespace": "default",
            "uid": f"pod-{attempt}",
            "resourceVersion": "5",
            "labels": {"grpo.dev/role": "trainer"},
            "ownerReferences": [job | {"controller": True}],
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def cache() -> Cache:
    made = Cache()
    meta = {"name": "copy", "namespace": "default", "uid": UID, "resourceVersion": "4"}
    made.put(JOBS, {"metadata": meta, "status": {"attempt": 1}})
    made.put(PODS, a_pod())
    made.put(PODS, a_pod(attempt=2))
    return made


@pytest.fixture
def poller(trainer: FakeTrainer, woken: list, state: ProcessState, cache: Cache) -> Poller:
    return Poller(cache, state, trainer, wake=woken.append, seconds=1)


def answer(**changes: Any) -> bytes:
    return report(**changes).model_dump_json(by_alias=True).encode()


async def test_news_wakes_the_job_and_the_same_again_does_not(poller, trainer, woken, state):
    trainer.body = answer()
    await poller.poll(KEY)
    trainer.body = answer(heartbeat=9)
    await poller.poll(KEY)
    assert (woken, trainer.paths) == ([KEY], 2 * ["/progress"])
    trainer.body = answer(step=5)
    await poller.poll(KEY)
    assert woken == [KEY, KEY]
    found = state.report(KEY, uid=UID, attempt=1).progress
    assert found is not None and found.step == 5


async def test_a_report_of_a_newer_runtime_is_read_without_its_new_fields(poller, trainer, woken, state):
    newer = json.loads(answer(step=5))
    newer["engines"]["futureField"] = "x"
    trainer.body = json.dumps(newer | {"futureField": {"a": 1}}).encode()
    await poller.poll(KEY)
    heard = state.report(KEY, uid=UID, attempt=1)
    assert (heard.progress, heard.problem, woken) == (report(step=5), None, [KEY])


@pytest.mark.parametrize(
    "body",
    [
        answer(job_uid="another"),
        answer(attempt=2),
        errors.Transient("connection refused"),
    ],
    ids=[
        "another job",
        "another attempt",
        "no answer",
    ],
)
async def test_an_answer_that_is_not_this_trainers_progress_changes_nothing(
    poller, trainer, woken, state, body
):
    trainer.body = body
    await poller.poll(KEY)
    assert woken == []
    heard = state.report(KEY, uid=UID, attempt=1)
    assert (heard.progress, heard.problem) == (None, None)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (answer(), PollOutcome.OK),
        (answer(job_uid="another"), PollOutcome.OTHER_JOB),
        (errors.Transient("connection refused"), PollOutcome.NO_ANSWER),
        (b"not json", PollOutcome.UNREADABLE),
        (b'{"schemaVersion": 999}', PollOutcome.UNREADABLE),
    ],
)
async def test_what_came_of_each_question_is_told(cache, state, body, outcome):
    trainer, told = FakeTrainer(), []
    trainer.body = body
    poller = Poller(cache, state, trainer, wake=lambda key: None, seconds=1, on_poll=told.append)
    for _ in range(2):
        await poller.poll(KEY)
    await poller.poll(("default", "unknown"))
    assert told == [outcome, outcome]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not json", "ProgressUnreadable"),
        (b"[]", "ProgressUnreadable"),
        (b"[" * MAX_BYTES, "ProgressUnreadable"),
        (b"x" * (MAX_BYTES + 1), "ProgressUnreadable"),
        (b'{"schemaVersion": 999}', "SchemaSkew"),
    ],
    ids=["not json", "a list", "deep", "too large", "another schema"],
)
async def test_an_answer_that_cannot_be_read_wakes_the_job_once(cache, state, body, reason):
    trainer, woken = FakeTrainer(), []
    poller = Poller(cache, state, trainer, wake=woken.append, seconds=1)
    trainer.body = body
    await poller.poll(KEY)
    await poller.poll(KEY)
    assert woken == [KEY]
    report_problem = state.report(KEY, uid=UID, attempt=1).problem
    assert report_problem.reason == reason
    trainer.body = answer()
    await poller.poll(KEY)
    assert (woken, state.report(KEY, uid=UID, attempt=1).problem) == ([KEY, KEY], None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policyVersion", "1" * 254),
        ("step", 10**30),
        ("step", -1),
        ("checkpointStep", 10**30),
        ("engines", {"desired": 1, "known": 1, "current": 10**30}),
        ("tokensPerSecond", 1e300),
    ],
)
async def test_a_report_that_no_status_could_hold_is_unreadable(poller, trainer, state, field, value):
    trainer.body = json.dumps(report().to_object() | {field: value}).encode()
    await poller.poll(KEY)
    heard = state.report(KEY, uid=UID, attempt=1)
    assert (heard.progress, heard.problem.reason) == (None, "ProgressUnreadable")
    assert field in heard.problem.message


async def test_the_largest_report_that_can_be_read_fits_into_a_status(poller, trainer, state):
    most = 2**53 - 1
    trainer.body = answer(
        **{"step": most, "total_steps": most, "heartbeat": most, "checkpoint_step": most},
        **{"policy_version": "1" * 253, "tokens_per_second": 1e12, "message": "x" * 5000},
    )
    await poller.poll(KEY)
    polling = FakeCluster().start()
    polling.progress = state.report(KEY, uid=UID, attempt=1).progress
    polling.settle()
    assert GRPOJobStatus.from_object(polling.status.to_object()) == polling.status
    assert (polling.status.step, polling.status.policy_version) == (most, "1" * 253)


async def test_a_report_of_another_release_names_both_versions_and_the_fix(poller, trainer, state):
    trainer.body = b'{"schemaVersion": 999}'
    await poller.poll(KEY)
    message = state.report(KEY, uid=UID, attempt=1).problem.message
    assert "schemaVersion 999" in message and "runtime image of the same release" in message


async def test_a_trainer_that_does_not_answer_is_a_report_problem_from_a_minute_on_until_it_does(
    trainer, woken, state, cache
):
    now = [NOW]
    poller = Poller(cache, state, trainer, wake=woken.append, seconds=1, clock=lambda: now[0])
    trainer.body = errors.Transient("connection refused")
    for seconds in (0, 59, 60, 62):
        now[0] = NOW + timedelta(seconds=seconds)
        await poller.poll(KEY)
    report_problem = state.report(KEY, uid=UID, attempt=1).problem
    assert (report_problem.reason, woken) == ("ProgressUnreachable", [KEY])
    assert "connection refused" in report_problem.message
    trainer.body = answer()
    await poller.poll(KEY)
    assert (state.report(KEY, uid=UID, attempt=1).problem, woken) == (None, [KEY, KEY])


async def test_a_job_without_a_running_trainer_is_not_asked(trainer, woken, state):
    cache = Cache()
    meta = {"name": "copy", "namespace": "default", "uid": UID, "resourceVersion": "4"}
    cache.put(JOBS, {"metadata": meta, "status": {"attempt": 1}})
    cache.put(PODS, a_pod(phase="Pending"))
    await Poller(cache, state, trainer, wake=woken.append, seconds=1).poll(KEY)
    assert trainer.paths == []


async def test_a_trainer_is_told_how_many_engines_its_job_asks_for(trainer, woken, state, cache):
    poller = Poller(cache, state, trainer, wake=woken.append, seconds=1)
    trainer.body = answer()
    for version, desired in (("6", 4), ("7", 2)):
        meta = cache.job(KEY)["metadata"] | {"resourceVersion": version}
        cache.put(JOBS, {"metadata": meta, "status": {"attempt": 1, "rollout": {"desired": desired}}})
        await poller.poll(KEY)
    assert trainer.paths == ["/progress?engines=4", "/progress?engines=2"]


async def test_the_first_trainer_of_the_current_attempt_is_asked_and_no_other(woken, state, cache):
    asked: list[str] = []

    async def fetch(pod: dict[str, Any], path: str) -> bytes:
        asked.append(pod["metadata"]["name"])
        return answer(attempt=2)

    job = cache.job(KEY)
    cache.put(JOBS, {"metadata": job["metadata"] | {"resourceVersion": "6"}, "status": {"attempt": 2}})
    second = a_pod(attempt=2)
    second["metadata"] |= {"name": "copy-abc123-trainer-a2-1", "uid": "pod-2-1"}
    cache.put(PODS, second)
    await Poller(cache, state, fetch, wake=woken.append, seconds=1).poll(KEY)
    assert asked == ["copy-abc123-trainer-a2-0"]
    assert state.report(KEY, uid=UID, attempt=2).progress is not None


def put_running(cache: Cache, *, namespace: str, number: int) -> None:
    """A job whose trainer runs."""
    uid = f"{namespace}-{number}"
    meta = {"name": f"copy-{number}", "namespace": namespace, "uid": uid, "resourceVersion": "4"}
    cache.put(JOBS, {"metadata": meta, "status": {"attempt": 1}})
    pod = a_pod()
    pod["metadata"] |= {"name": f"copy-{number}-abc123-trainer-a1-0", "uid": f"pod-{uid}"}
    pod["metadata"] |= {"namespace": namespace}
    pod["metadata"]["ownerReferences"][0] |= {"name": f"copy-{number}", "uid": uid}
    cache.put(PODS, pod)


async def test_trainers_of_one_namespace_that_do_not_answer_delay_no_other_namespace(state):
    cache = Cache()
    for number in range(100):
        put_running(cache, namespace="silent", number=number)
    put_running(cache, namespace="other", number=0)
    silence, asked = asyncio.Event(), Counter[str]()

    async def ask(pod: dict[str, Any], path: str) -> bytes:
        asked[pod["metadata"]["namespace"]] += 1
        if pod["metadata"]["namespace"] == "silent":
            await silence.wait()
        return answer()

    polling = asyncio.create_task(Poller(cache, state, ask, wake=lambda key: None, seconds=0.05).run())
    async with asyncio.timeout(60):
        while asked["other"] < 5:  # noqa: ASYNC110 - the poller has no event to wait for
            await asyncio.sleep(0.01)
    assert asked["silent"] == POLLS_IN_FLIGHT_OF_A_NAMESPACE < POLLS_IN_FLIGHT
    silence.set()
    async with asyncio.timeout(60):
        while asked["silent"] < 100:  # noqa: ASYNC110 - the poller has no event to wait for
            await asyncio.sleep(0.01)
    polling.cancel()


async def test_the_polls_of_many_jobs_are_spread_over_the_time_between_two(state):
    asked: list[float] = []
    cache = Cache()
    for number in range(4):
        put_running(cache, namespace="default", number=number)

    async def ask(pod: dict[str, Any], path: str) -> bytes:
        asked.append(asyncio.get_running_loop().time())
        return answer()

    polling = asyncio.create_task(Poller(cache, state, ask, wake=lambda key: None, seconds=0.4).run())
    async with asyncio.timeout(60):
        while len(asked) < 8:  # noqa: ASYNC110 - the poller has no event to wait for
            await asyncio.sleep(0.01)
    polling.cancel()
    # the sum of the pauses, because one of them may be short after a long one on a busy machine
    assert asked[7] - asked[0] > 0.6
    assert len([gap for gap in map(sub, asked[1:], asked) if gap > 0.05]) >= 4
