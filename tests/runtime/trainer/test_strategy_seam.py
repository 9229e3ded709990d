"""A strategy whose weights are spread over the ranks goes in without a change to the product: see
`sharded_strategy`. It trains, syncs, probes, saves, stops, resumes and exports."""

from pathlib import Path

import pytest
import torch
from fake_job import STEPS, job, learned, records, weights
from trainer_pod import TrainerPod

SHARDED = {"FAKE_STRATEGY": "sharded"}


def train_until(step: int, pod: TrainerPod, *, resumed_from_step: int | None) -> None:
    """Stop the run in this step."""
    progress = pod.wait_until(lambda progress: progress.step == step)
    assert progress.resumed_from_step == resumed_from_step
    pod.terminate()
    code, message = pod.end()
    assert code == 143, message
    assert message.progress is not None
    assert message.progress.checkpoint_step == step


def test_a_sharded_run_from_a_checkpoint_of_ddp_and_from_its_own_learns_what_ddp_learns(
    two_ranks: Path, tmp_path: Path
) -> None:
    train_until(2, TrainerPod(tmp_path, job(), hang_at=2), resumed_from_step=None)
    second = TrainerPod(tmp_path, job(), attempt=2, hang_at=4, environment=SHARDED)
    train_until(4, second, resumed_from_step=2)
    code, message = TrainerPod(tmp_path, job(), attempt=3, environment=SHARDED).end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.step) == (4, STEPS)

    assert [record.attempt for record in records(tmp_path)] == [1, 1, 2, 2, 3, 3]
    for one, other in zip(learned(tmp_path), learned(two_ranks), strict=True):
        assert one == pytest.approx(other, abs=1e-6, rel=1e-5)
    exported, others = weights(tmp_path), weights(two_ranks)
    assert exported.keys() == others.keys()
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-5)
