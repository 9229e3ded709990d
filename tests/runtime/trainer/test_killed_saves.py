"""A process that is killed while it saves leaves the checkpoint before, or the new one, and never half of
one."""

from pathlib import Path

import pytest
from forks import run_ranks
from killed_saves import POINTS
from still_strategy import store

from grpo_runtime.trainer.checkpoint.contents import read_run_state, read_training_state

pytestmark = pytest.mark.processes

COMMITTED = ("before LATEST", "before the one before is removed")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each point."""
    folder = tmp_path_factory.mktemp("killed")
    run_ranks(Path(__file__).with_name("killed_saves.py"), str(folder), num_ranks=1)
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_save_is_whole_or_absent(killed: Path, point: str) -> None:
    expected = 4 if point in COMMITTED else 2
    later = store(killed / point, attempt=2)
    later.begin_attempt()
    found = later.newest()
    assert found is not None
    folder, manifest = found
    assert manifest.step == expected == read_run_state(folder).step
    tensors = read_training_state(folder)
    assert all(bool((weight == expected).all()) for weight in tensors.model.values())
    assert all(bool((moment == -expected).all()) for moment in tensors.optimizer.values())
    assert not [*folder.parent.glob(".tmp-*"), *folder.parent.glob("*damaged*")]
