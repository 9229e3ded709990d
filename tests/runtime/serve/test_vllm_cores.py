"""What the server and the workers of an engine of several cores add to vLLM's."""

import asyncio
from typing import Any

import pytest
import torch

from grpo_runtime.serve.vllm_cpu_experts import own_choice
from grpo_runtime.serve.vllm_server import EngineClient
from grpo_runtime.weight_sync.interface import GroupBrokenError

# importing vLLM takes as long as starting one
pytestmark = pytest.mark.engine


class Cores:
    """Cores that answer what a test says, the later ones first."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.core_engines = list(range(len(answers)))
        self.answered: list[int] = []
        self._answers = answers

    async def _call_utility_async(self, method: str, *args: Any, engine: int) -> list[str]:
        assert (method, args) == ("collective_rpc", ("update_weights", None, (), {"update_info": {}}))
        for _ in self.core_engines[engine:]:
            await asyncio.sleep(0)
        self.answered.append(engine)
        answer = self._answers[engine]
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedClient(EngineClient):
    """It has started no process."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.cores = Cores(*answers)
        self.engine_core: Any = self.cores

    def shutdown(self, timeout: float | None = None) -> None: ...


async def update(client: ScriptedClient) -> list[str]:
    return await client.collective_rpc("update_weights", kwargs={"update_info": {}})


async def test_a_call_has_the_answers_of_the_workers_of_all_cores() -> None:
    assert await update(ScriptedClient(["a", "b"], ["c", "d"])) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("place", [0, 1])
async def test_the_error_of_one_core_is_raised_when_all_have_answered(place: int) -> None:
    answers: list[list[str] | Exception] = [["done"], ["done"]]
    answers[place] = RuntimeError("out of memory")
    client = ScriptedClient(*answers)
    with pytest.raises(RuntimeError, match="out of memory"):
        await update(client)
    assert sorted(client.cores.answered) == [0, 1]


async def test_a_core_that_failed_by_itself_is_named_before_one_that_lost_its_group() -> None:
    broken = GroupBrokenError("connection closed")
    with pytest.raises(RuntimeError, match="out of memory"):
        await update(ScriptedClient(broken, RuntimeError("out of memory")))
    with pytest.raises(GroupBrokenError):
        await update(ScriptedClient(broken, broken))


def test_a_worker_counts_only_the_experts_that_it_has() -> None:
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    ids = torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
    of_first = own_choice(weights, ids, expert_map=torch.tensor([0, 1, -1, -1]))
    assert of_first[0].tolist() == [[0, 0.25], [0, 0.5]]
    assert of_first[1].tolist() == [[0, 0], [0, 1]]
    of_second = own_choice(weights, ids, expert_map=torch.tensor([-1, -1, 0, 1]))
    assert of_second[0].tolist() == [[0.75, 0], [0.5, 0]]
    assert of_second[1].tolist() == [[0, 0], [1, 0]]
    assert of_second[1].dtype == ids.dtype
