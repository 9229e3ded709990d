"""A strategy whose weights are spread over the ranks goes in without a change to the product: see
`sharded_strategy`. It trains, syncs, probes, saves, stops, resumes and exports."""

import shutil
from dataclasses import dataclass
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


def train_to_the_end(pod: TrainerPod, *, resumed_from_step: int) -> None:
    """Complete the run."""
    code, message = pod.end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.step) == (resumed_from_step, STEPS)


@dataclass(frozen=True)
class Runs:
    """The folders of a run that DDP began and the sharded strategy went on with after a stop in step 2: one
    that was stopped again in step 4 and went on from its own checkpoint, and one undisturbed."""

    stopped: Path
    undisturbed: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    stopped, undisturbed = (tmp_path_factory.mktemp(name) for name in ("stopped", "undisturbed"))
    train_until(2, TrainerPod(stopped, job(), hang_at=2), resumed_from_step=None)
    shutil.copytree(stopped / "output", undisturbed / "output")
    train_to_the_end(TrainerPod(undisturbed, job(), attempt=2, environment=SHARDED), resumed_from_step=2)
    second = TrainerPod(stopped, job(), attempt=2, hang_at=4, environment=SHARDED)
    train_until(4, second, resumed_from_step=2)
    train_to_the_end(TrainerPod(stopped, job(), attempt=3, environment=SHARDED), resumed_from_step=4)
    assert [record.attempt for record in records(stopped)] == [1, 1, 2, 2, 3, 3]
    assert [record.attempt for record in records(undisturbed)] == [1, 1, 2, 2, 2, 2]
    return Runs(stopped, undisturbed)


def test_a_sharded_run_that_is_stopped_goes_on_from_its_checkpoint_with_the_same_bits(runs: Runs) -> None:
    assert learned(runs.stopped) == learned(runs.undisturbed)
    mine, others = weights(runs.stopped), weights(runs.undisturbed)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_a_sharded_run_from_a_checkpoint_of_ddp_learns_what_ddp_learns(two_ranks: Path, runs: Runs) -> None:
    for one, other in zip(learned(runs.stopped), learned(two_ranks), strict=True):
        assert one == pytest.approx(other, abs=1e-6, rel=1e-5)
    exported, others = weights(runs.stopped), weights(two_ranks)
    assert exported.keys() == others.keys()
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=1e-5)
