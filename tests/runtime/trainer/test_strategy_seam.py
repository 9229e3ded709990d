"""A strategy whose weights are spread over the ranks goes in without a change to the product: see
`sharded_strategy`. It trains, syncs, probes, saves, stops, resumes and exports."""

from pathlib import Path

import pytest
import torch
from test_trainer_pod import STEPS, job, learned, weights
from trainer_pod import TrainerPod

SHARDED = {"FAKE_STRATEGY": "sharded"}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an undisturbed run on two ranks."""
    folder = tmp_path_factory.mktemp("sharded")
    code, message = TrainerPod(folder, job(), environment=SHARDED).end()
    assert code == 0, message
    return folder


def test_a_sharded_run_learns_what_ddp_learns(sharded: Path, tmp_path: Path) -> None:
    assert TrainerPod(tmp_path, job()).end()[0] == 0
    assert len(learned(sharded)) == STEPS
    for one, other in zip(learned(sharded), learned(tmp_path), strict=True):
        assert one == pytest.approx(other, abs=1e-6, rel=1e-5)
    exported, others = weights(sharded), weights(tmp_path)
    assert exported.keys() == others.keys()
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-5)


def test_a_sharded_run_that_is_stopped_goes_on_from_its_checkpoint_with_the_same_bits(
    sharded: Path, tmp_path: Path
) -> None:
    first = TrainerPod(tmp_path, job(), hang_at=3, environment=SHARDED)
    first.wait_until(lambda progress: progress.step == 3)
    first.terminate()
    code, message = first.end()
    assert code == 143, message
    assert message.progress is not None
    assert message.progress.checkpoint_step == 3

    code, message = TrainerPod(tmp_path, job(), attempt=2, environment=SHARDED).end()
    assert code == 0, message
    assert message.progress is not None
    assert message.progress.resumed_from_step == 3
    mine, others = weights(tmp_path), weights(sharded)
    assert all(torch.equal(mine[name], others[name]) for name in others)
    assert learned(tmp_path) == learned(sharded)


def test_a_checkpoint_of_one_strategy_is_read_by_the_other(tmp_path: Path) -> None:
    first = TrainerPod(tmp_path, job(), hang_at=2)
    first.wait_until(lambda progress: progress.step == 2)
    first.terminate()
    assert first.end()[0] == 143
    code, message = TrainerPod(tmp_path, job(), attempt=2, environment=SHARDED).end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.step) == (2, STEPS)
