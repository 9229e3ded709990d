"""The executor of several workers, with workers that answer what a test says."""

from collections import deque
from typing import Any

import pytest
from vllm.v1.executor.multiproc_executor import WorkerProc

from grpo_runtime.engines.vllm.executor import AllAnswersExecutor
from grpo_runtime.weight_sync.interface import GroupBrokenError

# importing vLLM takes as long as starting one
pytestmark = pytest.mark.engine

OK, FAILED = WorkerProc.ResponseStatus.SUCCESS, WorkerProc.ResponseStatus.FAILURE
Answer = tuple[WorkerProc.ResponseStatus, str]


class Calls:
    """Takes the calls to all workers."""

    def enqueue(self, call: Any) -> None: ...


class Worker:
    """The answers of one worker, in their order."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = deque(answers)

    def dequeue(self, timeout: float | None = None) -> Answer:
        return self._answers.popleft()


class ScriptedExecutor(AllAnswersExecutor):
    """It has started no process."""

    def __init__(self, *workers: Worker) -> None:
        self.is_failed = False
        self.rpc_broadcast_mq = Calls()
        self.response_mqs = list(workers)
        self.futures_queue = deque()
        self.shutting_down = True
        self._post_init_executor()


def test_after_an_error_the_next_call_gets_its_own_answers() -> None:
    first = Worker((FAILED, "refused"), (OK, "first"))
    others = [Worker((OK, "late"), (OK, name)) for name in ("second", "third")]
    executor = ScriptedExecutor(first, *others)
    with pytest.raises(RuntimeError, match="refused"):
        executor.collective_rpc("update")
    assert executor.collective_rpc("update") == ["first", "second", "third"]


def test_the_last_worker_may_be_the_one_that_fails() -> None:
    executor = ScriptedExecutor(Worker((OK, "a"), (OK, "first")), Worker((FAILED, "refused"), (OK, "second")))
    with pytest.raises(RuntimeError, match="refused"):
        executor.collective_rpc("update")
    assert executor.collective_rpc("update") == ["first", "second"]


def test_a_call_to_one_worker_leaves_the_answers_of_the_others() -> None:
    executor = ScriptedExecutor(Worker((FAILED, "refused"), (OK, "first")), Worker((OK, "second")))
    with pytest.raises(RuntimeError, match="refused"):
        executor.collective_rpc("sample", unique_reply_rank=0)
    assert executor.collective_rpc("update") == ["first", "second"]


def test_a_worker_that_failed_by_itself_is_named_before_one_that_lost_its_group() -> None:
    broken = (FAILED, str(GroupBrokenError("connection closed")))
    executor = ScriptedExecutor(Worker(broken), Worker((OK, "done")), Worker((FAILED, "out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        executor.collective_rpc("update")
    executor = ScriptedExecutor(Worker(broken), Worker(broken))
    with pytest.raises(RuntimeError, match="connection closed"):
        executor.collective_rpc("update")
