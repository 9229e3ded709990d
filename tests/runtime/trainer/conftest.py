"""Lets the tests of this folder import its helpers, and runs that several of them look at."""

import sys
from pathlib import Path

import pytest

from grpo_api.contract.progress import TrainerState

sys.path.insert(0, str(Path(__file__).parent))


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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a run of each way of `kill_cells`, made when it is first asked for."""
    from kill_cells import ALL_WAYS
    from killed_runs import run_attempt

    class Folders(dict[str, Path]):
        def __missing__(self, way: str) -> Path:
            folder = tmp_path_factory.mktemp(way.replace(" ", "-"))
            codes = run_attempt(folder, ALL_WAYS[way], attempt=1)
            assert set(codes) == {0}, (folder / "log-1").read_text()[-4000:]
            self[way] = folder
            return folder

    return Folders()
