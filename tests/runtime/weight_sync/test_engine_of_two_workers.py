"""A real engine whose model is cut into two parts, each in a process of its own, in a fleet."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_of_several import (
    assert_a_failed_transfer_leaves_the_old_weights,
    assert_it_samples_as_one_worker_does,
)
from polling import wait_until

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine_of_two(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The last test here kills a part of it."""
    folder = tmp_path_factory.mktemp("two")
    with start(folder, name="engine-of-two", tensor_parallel_size=2, is_forked=False) as started:
        yield started


async def test_each_sync_reaches_both_workers_and_the_engine_samples_what_one_of_one_worker_does(
    engine_of_two: Any, engine: Any, attempt: int
) -> None:
    await assert_it_samples_as_one_worker_does(engine_of_two, one=engine, attempt=attempt, num_workers=2)


@pytest.mark.matrix
async def test_a_failed_transfer_leaves_both_workers_their_old_weights_and_the_next_one_works(
    engine_of_two: Any, attempt: int
) -> None:
    await assert_a_failed_transfer_leaves_the_old_weights(engine_of_two, attempt=attempt, num_workers=2)


@pytest.mark.matrix
def test_an_engine_that_has_lost_a_worker_says_so_and_ends(engine_of_two: Any) -> None:
    """The last test of this file."""
    os.kill(worker_of(engine_of_two), signal.SIGKILL)
    wait_until(lambda: not engine_of_two.is_live(), "the engine says that it is dead", seconds=60)
    assert engine_of_two.process.wait(60) == ExitCode.UNEXPECTED
    message = TerminationMessage.model_validate_json(engine_of_two.termination_log.read_text())
    assert message.message == "the vLLM engine died; see this container's log"
    wait_until(lambda: processes_of(engine_of_two) == {}, "no process outlives it")


def worker_of(engine: Any) -> int:
    """The process of its last worker."""
    return max(pid for pid, name in processes_of(engine).items() if "Worker_TP1" in name)


def processes_of(engine: Any) -> dict[int, str]:
    """The command line of each living process of the pod's session."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if int(fields[3]) == engine.process.pid and fields[0] != "Z":
            found[int(stat.parent.name)] = command
    return found
