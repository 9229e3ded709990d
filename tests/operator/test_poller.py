"""Polling: only news of the right trainer counts, and a bad answer harms nobody."""

from typing import Any

import pytest

from grpo_operator import errors
from grpo_operator.cache import Cache
from grpo_operator.kinds import JOBS, PODS
from grpo_operator.memory import Memory
from grpo_operator.poller import MAX_BYTES, Poller

from .fake_world import UID, report

KEY = ("default", "copy")


class FakeTrainer:
    """Answers /progress with `body`, or with an error."""

    def __init__(self) -> None:
        self.body: bytes | Exception = b""
        self.num_asked = 0

    async def __call__(self, pod: dict[str, Any]) -> bytes:
        self.num_asked += 1
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
def memory() -> Memory:
    return Memory()


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
def poller(trainer: FakeTrainer, woken: list, memory: Memory) -> Poller:
    cache = Cache()
    meta = {"name": "copy", "namespace": "default", "uid": UID, "resourceVersion": "4"}
    cache.put(JOBS, {"metadata": meta, "status": {"attempt": 1}})
    cache.put(PODS, a_pod())
    cache.put(PODS, a_pod(attempt=2))
    return Poller(cache, memory, trainer, wake=woken.append, seconds=1)


def answer(**changes: Any) -> bytes:
    return report(**changes).model_dump_json(by_alias=True).encode()


async def test_news_wakes_the_job_and_the_same_again_does_not(poller, trainer, woken, memory):
    trainer.body = answer()
    await poller.poll(KEY)
    trainer.body = answer(heartbeat=9)
    await poller.poll(KEY)
    assert (woken, trainer.num_asked) == ([KEY], 2)
    trainer.body = answer(step=5)
    await poller.poll(KEY)
    assert woken == [KEY, KEY]
    found = memory.progress_of(KEY, uid=UID, attempt=1)
    assert found is not None and found.step == 5


@pytest.mark.parametrize(
    "body",
    [
        answer(job_uid="another"),
        answer(attempt=2),
        b"not json",
        b"[]",
        b'{"schemaVersion": 999}',
        b"[" * MAX_BYTES,
        b"x" * (MAX_BYTES + 1),
        errors.Transient("connection refused"),
    ],
    ids=[
        "another job",
        "another attempt",
        "not json",
        "a list",
        "another schema",
        "deep",
        "too large",
        "no answer",
    ],
)
async def test_an_answer_that_is_not_this_trainers_progress_changes_nothing(
    poller, trainer, woken, memory, body
):
    trainer.body = body
    await poller.poll(KEY)
    assert woken == []
    assert memory.progress_of(KEY, uid=UID, attempt=1) is None


def test_a_complaint_is_news_once_and_again_after_another(memory):
    told = ["not json", "not json", "too large", "not json"]
    assert [memory.remember_complaint(KEY, text) for text in told] == [True, False, True, True]


async def test_a_job_without_a_running_trainer_is_not_asked(trainer, woken, memory):
    cache = Cache()
    meta = {"name": "copy", "namespace": "default", "uid": UID, "resourceVersion": "4"}
    cache.put(JOBS, {"metadata": meta, "status": {"attempt": 1}})
    cache.put(PODS, a_pod(phase="Pending"))
    await Poller(cache, memory, trainer, wake=woken.append, seconds=1).poll(KEY)
    assert trainer.num_asked == 0
