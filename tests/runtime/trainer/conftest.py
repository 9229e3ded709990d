"""Lets the tests of this folder import its helpers, and ends the processes that a failed test left."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from grpo_api.contract.progress import TrainerState

if TYPE_CHECKING:
    from killed_runs import Attempts

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


@pytest.fixture(autouse=True)
def no_pod_outlives_its_test() -> Iterator[None]:
    from started_processes import end_what_is_left

    yield
    end_what_is_left()


@pytest.fixture(scope="session", autouse=True)
def no_pod_server_outlives_the_session() -> Iterator[None]:
    from forked_pods import POD_SERVER

    yield
    POD_SERVER.close()


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an undisturbed run on two ranks."""
    from fake_job import STEPS, job
    from trainer_pod import TrainerPod

    folder = tmp_path_factory.mktemp("two-ranks")
    code, message = TrainerPod(folder, job()).end()
    assert (code, message.reason) == (0, "Done"), message
    assert message.progress is not None
    assert message.progress.state == TrainerState.DONE
    assert (message.progress.step, message.progress.policy_version) == (STEPS, f"1.{STEPS}")
    return folder


@pytest.fixture(scope="module")
def server() -> "Iterator[Attempts]":
    """Runs attempts over scripted engines."""
    from killed_runs import attempts

    with attempts() as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(server: "Attempts", tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a run of each way of `kill_cells`, made when it is first asked for."""
    from kill_cells import ALL_WAYS

    class Folders(dict[str, Path]):
        def __missing__(self, way: str) -> Path:
            folder = tmp_path_factory.mktemp(way.replace(" ", "-"))
            codes = server.run(folder, ALL_WAYS[way], attempt=1)
            assert set(codes) == {0}, (folder / "log-1").read_text()[-4000:]
            self[way] = folder
            return folder

    return Folders()
