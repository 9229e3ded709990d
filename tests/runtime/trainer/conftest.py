"""Lets the tests of this folder import its helpers, and ends the processes that a failed test left."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_api.contract.progress import TrainerState

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
    assert message.progress.stale_samples == 0
    return folder
