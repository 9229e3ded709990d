"""What the server and the workers of an engine of several cores add to vLLM's."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

from grpo_runtime.engines.vllm.cpu_experts import (
    ExpertParallelWorker,
    all_gatherv,
    own_choice,
    reduce_scatterv,
)
from grpo_runtime.engines.vllm.cpu_workers import PipelineStageWorker
from grpo_runtime.engines.vllm.server import VllmClient, _ending_with_its_coordinator
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rollouts.interface import EngineError
from grpo_runtime.rollouts.wire import EngineCall
from grpo_runtime.weight_sync.interface import GroupBrokenError

# importing vLLM takes as long as starting one
pytestmark = pytest.mark.engine


class Cores:
    """Cores that answer what a test says, the later ones first."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.core_engines = list(range(len(answers)))
        self.answered: list[int] = []
        self.resources: Any = None
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


class ScriptedClient(VllmClient):
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


class PausedCores(Cores):
    """Cores that are told to pause and to meet."""

    def __init__(self, *, is_paused: bool, fails: bool) -> None:
        super().__init__([], [])
        self.told: list[str] = []
        self.is_meeting, self.has_met = asyncio.Event(), asyncio.Event()
        self._is_paused = is_paused
        self._fails = fails

    async def is_scheduler_paused_async(self) -> bool:
        return self._is_paused

    async def pause_scheduler_async(self, *, mode: str, clear_cache: bool) -> None:
        self.told.append(f"pause {mode}{' clear' if clear_cache else ''}")
        self._is_paused = True

    async def resume_scheduler_async(self) -> None:
        self.told.append("resume")
        self._is_paused = False

    async def _call_utility_async(self, method: str, *args: Any, engine: int) -> list[str]:
        self.told.append(args[0])
        self.is_meeting.set()
        await self.has_met.wait()
        if self._fails:
            raise GroupBrokenError("not all members met")
        return []


def cores_to_meet(
    *, num_cores: int = 2, is_paused: bool = False, fails: bool = False
) -> tuple[ScriptedClient, PausedCores]:
    client, cores = ScriptedClient(), PausedCores(is_paused=is_paused, fails=fails)
    client.engine_core = cores
    client.vllm_config = SimpleNamespace(  # type: ignore[assignment]
        parallel_config=SimpleNamespace(data_parallel_size=num_cores)
    )
    return client, cores


MEET = "init_weight_transfer_engine"


@pytest.mark.parametrize("fails", [False, True])
async def test_cores_that_run_are_paused_until_all_have_met_the_trainer_or_failed_to(*, fails: bool) -> None:
    client, cores = cores_to_meet(fails=fails)
    cores.has_met.set()
    meeting = client.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    if fails:
        with pytest.raises(GroupBrokenError):
            await meeting
    else:
        await meeting
    assert cores.told == ["pause keep", MEET, MEET, "resume"]


@pytest.mark.parametrize(("num_cores", "is_paused"), [(1, False), (2, True)])
async def test_one_core_and_cores_that_are_paused_meet_the_trainer_as_they_are(
    *, num_cores: int, is_paused: bool
) -> None:
    client, cores = cores_to_meet(num_cores=num_cores, is_paused=is_paused)
    cores.has_met.set()
    await client.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    assert cores.told == [MEET, MEET]


async def test_a_pause_that_is_asked_for_while_cores_meet_the_trainer_lasts() -> None:
    client, cores = cores_to_meet()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.init_weight_transfer_engine(WeightTransferInitRequest(init_info={})))
        await cores.is_meeting.wait()
        group.create_task(client.pause_generation(mode="keep", clear_cache=False))
        await asyncio.sleep(0)
        cores.has_met.set()
    assert cores.told == ["pause keep", MEET, MEET, "resume", "pause keep"]


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


def test_the_places_of_experts_are_looked_up_once_however_often_a_worker_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm_apply = CPUUnquantizedExperts.apply
    monkeypatch.setattr(CPUUnquantizedExperts, "apply", vllm_apply)
    for name in ("all_gatherv", "reduce_scatterv"):
        monkeypatch.setattr(CpuCommunicator, name, None, raising=False)
    monkeypatch.setattr(PipelineStageWorker, "init_device", lambda _: None)
    worker = ExpertParallelWorker.__new__(ExpertParallelWorker)
    worker.init_device()
    worker.init_device()
    completed: Any = CPUUnquantizedExperts.apply
    assert completed.__wrapped__ is vllm_apply


@pytest.mark.matrix
def test_workers_without_experts_of_their_own_do_not_load_what_has_them() -> None:
    experts = CPUUnquantizedExperts.__module__
    script = f"""
import sys
import {PipelineStageWorker.__module__}
assert "{experts}" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_only_rows_are_exchanged() -> None:
    rows, communicator = torch.zeros(2, 2), CpuCommunicator.__new__(CpuCommunicator)
    with pytest.raises(ValueError, match="dimension 0 of a tensor, not 1"):
        all_gatherv(communicator, [rows], 1, [2])
    with pytest.raises(ValueError, match="dimension 0 of a tensor, not -1"):
        reduce_scatterv(communicator, rows, -1, [2])


class StandInCore:
    """A process of a core that only remembers that it was killed."""

    def __init__(self) -> None:
        self.is_killed = asyncio.Event()

    def kill(self) -> None:
        self.is_killed.set()


async def test_cores_without_their_coordinator_are_killed_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, cores = ScriptedClient(), [StandInCore(), StandInCore()]
    sentinel, held_by_coordinator = os.pipe()
    client.cores.resources = SimpleNamespace(
        coordinator=SimpleNamespace(proc=SimpleNamespace(sentinel=sentinel, exitcode=-9)),
        engine_manager=SimpleNamespace(processes=cores),
    )
    async with _ending_with_its_coordinator(client):
        assert not any(core.is_killed.is_set() for core in cores)
        os.close(held_by_coordinator)
        async with asyncio.timeout(60):
            for core in cores:
                await core.is_killed.wait()
    os.close(sentinel)
    (said,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "the 2 cores of this engine" in said.getMessage()
    assert "exit code -9: the cores are killed" in said.getMessage()
    assert "this server ends with them" in said.getMessage()


CONFIGURE = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from grpo_runtime.engines.vllm.configuration import checked, parse_arguments
from grpo_runtime.errors import UserError
from grpo_runtime.engines.vllm.server import engine_config

args = parse_arguments(sys.argv[1:], add=make_arg_parser)
try:
    checked(lambda: engine_config(args), given=[])
except UserError as error:
    print("REFUSED", error)
"""


@pytest.mark.matrix
async def test_a_server_that_ends_begins_no_completion() -> None:
    """Its cores would not answer any more."""
    client = VllmClient.__new__(VllmClient)
    client.shutdown()
    with pytest.raises(EngineError, match="engine-0 is asked to stop"):
        await client.sample(EngineCall((1, 2), {"max_tokens": 4}), name="engine-0")


class EndingCore:
    """A core that only remembers that it was ended."""

    is_ended = False

    def shutdown(self, *, timeout: float | None) -> None:
        self.is_ended = True


class ClientThatCannotHandOver(VllmClient):
    async def hand_over(self) -> None:
        raise EngineError("the core is dead")


async def test_a_server_ends_also_where_nothing_can_be_handed_over(caplog: pytest.LogCaptureFixture) -> None:
    client, core = ClientThatCannotHandOver.__new__(ClientThatCannotHandOver), EndingCore()
    client.engine_core = core  # type: ignore[assignment]
    client._sampling["sampled"] = asyncio.get_running_loop()
    await asyncio.to_thread(client.shutdown, timeout=3)
    client._sampling.clear()
    assert core.is_ended
    assert "could not be handed over: the engine ends without it" in caplog.text


def test_experts_of_a_model_that_has_none_are_refused_by_the_name_of_the_field(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    arguments = ["--model", str(tmp_path), "--tensor-parallel-size", "2", "--enable-expert-parallel"]
    done = subprocess.run(
        [sys.executable, "-c", CONFIGURE, *arguments, "--distributed-executor-backend", "mp"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert said == ["REFUSED engine.expertParallel needs a model with experts: remove it"], done.stderr[
        -2000:
    ]
