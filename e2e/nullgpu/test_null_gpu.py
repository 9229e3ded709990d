"""The CUDA build on GPUs that compute nothing: devices, memory, handles, streams and NCCL.

Each test is a program in processes of its own, under the libraries of the null GPU. See docs/null-gpu.md.
"""

import json
from pathlib import Path

import pytest
from grpo_nullgpu.machine import NullMachine

from grpo_runtime.local.node import Node

pytestmark = pytest.mark.processes


@pytest.fixture
def machine(tmp_path: Path) -> NullMachine:
    return NullMachine(tmp_path)


@pytest.fixture
def counting(tmp_path: Path) -> NullMachine:
    """One with the numbers of the CPU."""
    return NullMachine(tmp_path, has_numbers=True)


def test_a_group_of_nccl_forms_while_its_engine_is_invited_and_carries_true_bytes(
    machine: NullMachine,
) -> None:
    """With late copies: each buffer is waited for before an engine reads it."""
    assert machine.run("nccl_group", "meets", NULL_GPU_DELAY="1").splitlines() == ["arrived True"] * 10


@pytest.mark.parametrize("loss", ["alone", "lost"])
def test_a_group_that_loses_a_member_is_given_up_and_the_next_one_forms(
    machine: NullMachine, loss: str
) -> None:
    first, *arrived = machine.run("nccl_group", loss).splitlines()
    assert first.startswith("given up after ")
    assert float(first.split()[3]) < 30
    assert arrived == ["arrived True"] * 10


def test_a_collective_that_hangs_is_given_up_at_its_deadline(machine: NullMachine) -> None:
    lines = machine.run("nccl_group", "hangs", NULL_GPU_HANG="collective:4").splitlines()
    assert "arrived True" in lines
    assert lines[-1].startswith("given up after ") and "no progress for 3 s" in lines[-1]
    assert any("hangs in a collective" in line for line in machine.log())


@pytest.mark.parametrize("arguments", [("3",), ("1", "killed")], ids=" ".join)
def test_memory_that_was_handed_to_an_engine_is_let_go_of(
    machine: NullMachine, arguments: tuple[str, ...]
) -> None:
    *read, left = machine.run("ipc", *arguments).splitlines()
    assert read == ["read [0, 0, 0, 0]", "read [1, 1, 1, 1]"] * int(arguments[0])
    assert left == "left 0"


def test_handles_to_segments_that_expand_are_opened_and_let_go_of(machine: NullMachine) -> None:
    lines = machine.run("ipc", "1", PYTORCH_ALLOC_CONF="expandable_segments:True").splitlines()
    assert lines == ["read [0, 0, 0, 0]", "read [1, 1, 1, 1]", "left 0"]


def test_handles_are_made_while_other_threads_take_fresh_memory(machine: NullMachine) -> None:
    assert machine.run("exports", NULL_GPU_GIB="80").splitlines() == ["made 3000"]


def test_a_rank_makes_a_context_on_its_own_gpu_only_and_waits_for_late_copies(machine: NullMachine) -> None:
    lines = machine.run("second_gpu", NULL_GPU_DELAY="1").splitlines()
    assert lines == ["copied on the GPU True", "copied to the host True", "locked True"]
    assert list(machine.devices_with_contexts().values()) == [{1}]


@pytest.mark.parametrize(("when", "code"), [("before", "0"), ("after", "1")])
def test_a_gpu_is_used_in_forks_of_a_process_that_uses_none(
    when: str, code: str, machine: NullMachine
) -> None:
    assert machine.run("forked", when).splitlines() == [code]


def test_late_copies_are_waited_for_before_an_engine_reads_them_by_ipc(machine: NullMachine) -> None:
    assert machine.run("ipc_delivery", NULL_GPU_DELAY="1").splitlines() == ["arrived True"] * 6


def test_copies_for_a_checkpoint_are_there_when_training_goes_on(machine: NullMachine) -> None:
    lines = machine.run("checkpoint_copies", NULL_GPU_DELAY="1").splitlines()
    assert lines == ["at once weights True moments True", "later weights True moments True"] * 3


def test_nvidias_own_runtime_is_told_that_it_cannot_start(machine: NullMachine) -> None:
    """Libraries such as FlashInfer bring one, past the null GPU's: they get an error, and no fault."""
    assert machine.run("own_runtime").split() == ["500", "0"]


def test_a_missing_wait_is_seen(machine: NullMachine) -> None:
    assert machine.run("waits", NULL_GPU_DELAY="1").splitlines() == ["at once False", "behind its event True"]
    assert machine.run("waits").splitlines() == ["at once True", "behind its event True"]


def test_memory_is_as_large_as_it_is_told_and_shared_by_all_processes(machine: NullMachine) -> None:
    lines = machine.run("memory", NULL_GPU_GIB="8").splitlines()
    refused = ["fits 2", "does not fit 4 True", "another process True"]
    assert lines == [*refused, "beside it 2", "free 8"]


def test_a_node_with_gpus_is_found_in_order(machine: NullMachine) -> None:
    lines = machine.run_module("grpo_runtime.cli", "validate", "--node").splitlines()
    found = [line[:20].rsplit(maxsplit=1) for line in lines[1:]]
    what = ["compiler", "driver", str(Node.shared_memory), "GPU 0", "GPU 1", "peer access", "NCCL"]
    assert [(name.strip(), mark) for name, mark in found] == [(name, "ok") for name in what]


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", ["FSDP2", "ZeRO1", "ZeRO2", "ZeRO3"])
def test_two_ranks_learn_over_nccl_what_they_learn_over_gloo_and_to_the_same_bits_again(
    strategy: str, counting: NullMachine, tmp_path: Path
) -> None:
    """Under DDP too, with the numbers of the CPU. They are forks of one process, as in a pod."""
    first, again = map(json.loads, ranks_on(counting, strategy, num_runs=2))
    assert first == again
    (line,) = ranks_on(NullMachine(tmp_path / "without", num_gpus=0, has_numbers=True), strategy, num_runs=1)
    over_gloo = json.loads(line)
    for name in ("DDP", strategy):
        assert first[name]["goes on"]
        for step, expected in zip(first[name]["steps"], over_gloo[name]["steps"], strict=True):
            assert step == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert first[name]["probe"] == pytest.approx(over_gloo[name]["probe"], rel=1e-5, abs=1e-5)
    devices = list(counting.devices_with_contexts().values())
    assert sorted(map(sorted, devices)) == [[0], [0], [1], [1]]


def ranks_on(machine: NullMachine, strategy: str, *, num_runs: int) -> list[str]:
    """The last lines that the program prints: a library says things before."""
    said = machine.run("ranks", strategy, str(num_runs), seconds=300.0)
    return said.splitlines()[-num_runs:]


@pytest.mark.matrix
def test_a_node_whose_gpus_do_not_find_each_other_says_so(machine: NullMachine) -> None:
    with pytest.raises(AssertionError, match="the GPUs did not find each other in 60 s"):
        machine.run_module(
            "grpo_runtime.cli", "validate", "--node", seconds=120.0, NULL_GPU_HANG="collective:1"
        )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("weight_sync/test_gpu.py", ""),
        # the others compare memory with a plan, with logits that the CPU takes minutes for
        ("trainer/test_gpu.py", "learns or computed_again or copies"),
    ],
)
def test_what_needs_a_gpu_passes_with_the_numbers_of_the_cpu(file: str, chosen: str, tmp_path: Path) -> None:
    """The tests marked gpu, of which make test-gpu runs the same on a real one; with NCCL to engines."""
    machine = NullMachine(tmp_path, num_gpus=8, has_numbers=True)
    said = machine.run_tests(f"tests/runtime/{file}", marks="gpu", chosen=chosen, NULL_GPU_GIB="80")
    assert "skipped" not in said


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("test_trainer_pod.py", ""),
        # those of two ranks
        ("test_journal_kills.py", "2-"),
        ("test_other_ranks.py", ""),
    ],
)
def test_whole_trainer_pods_end_with_the_same_bits_after_kills_and_stops(
    file: str, chosen: str, counting: NullMachine
) -> None:
    """The tests of the CPU: supervisor, ranks, here on GPUs, checkpoints. Their engines are fakes."""
    counting.run_tests(f"tests/runtime/trainer/{file}", marks="not matrix", chosen=chosen)
    assert {0} in counting.devices_with_contexts().values()
    assert any("joins a group as rank 1 of 2" in line for line in counting.log())


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("call", "place"),
    [
        ("collective:20", "rank 0 spreads the policy over the ranks; rank 1 spreads the policy"),
        ("collective:150", "rank 0 adds up the metrics of all ranks; rank 1 adds up the metrics"),
        ("stream:200", "rank 0 updates the weights; rank 1 "),
    ],
)
def test_a_call_that_hangs_ends_the_trainer_pod_in_its_time_and_is_told_with_where_each_rank_is(
    call: str, place: str, counting: NullMachine
) -> None:
    said = counting.run("hanging_pod", "20", seconds=180.0, NULL_GPU_HANG=call)
    code, reason, message = said.splitlines()[-1].split(maxsplit=2)
    assert (code, reason) == ("75", "TrainerStalled")
    assert place in message
    assert any(" hangs in a " in line for line in counting.log())
