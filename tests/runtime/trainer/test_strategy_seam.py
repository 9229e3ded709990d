"""A strategy that shards the weights over the ranks trains, syncs, probes, saves, stops, resumes and exports:
FSDP2, DeepSpeed's ZeRO, and one that goes in without a change to the product (`sharded_strategy`)."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fake_job import STEPS, job, learned, records, weights
from trainer_pod import TrainerPod

pytestmark = pytest.mark.processes


def pod_of(strategy: str, folder: Path, *, attempt: int, hang_at: int | None = None) -> TrainerPod:
    """An attempt on two ranks: one of the product's strategies, or `sharded`."""
    if strategy == "sharded":
        environment = {"FAKE_STRATEGY": "sharded"}
        return TrainerPod(folder, job(), attempt=attempt, hang_at=hang_at, environment=environment)
    return TrainerPod(folder, job(strategy=strategy), attempt=attempt, hang_at=hang_at)


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
    """The folders of a run that DDP began and a sharded strategy continued with after a stop in step 2: one
    that was stopped again in step 4 and continued from its own checkpoint, and one undisturbed."""

    stopped: Path
    undisturbed: Path


@pytest.fixture(scope="module")
def begun_by_ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped in step 2."""
    folder = tmp_path_factory.mktemp("begun")
    train_until(2, pod_of("DDP", folder, attempt=1, hang_at=2), resumed_from_step=None)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "FSDP2",
        *(pytest.param(name, marks=pytest.mark.matrix) for name in ("sharded", "ZeRO1", "ZeRO2", "ZeRO3")),
    ],
)
def runs(
    request: pytest.FixtureRequest, begun_by_ddp: Path, tmp_path_factory: pytest.TempPathFactory
) -> Runs:
    stopped, undisturbed = (tmp_path_factory.mktemp(name) for name in ("stopped", "undisturbed"))
    for folder in (stopped, undisturbed):
        shutil.copytree(begun_by_ddp / "output", folder / "output")
    train_to_the_end(pod_of(request.param, undisturbed, attempt=2), resumed_from_step=2)
    train_until(4, pod_of(request.param, stopped, attempt=2, hang_at=4), resumed_from_step=2)
    train_to_the_end(pod_of(request.param, stopped, attempt=3), resumed_from_step=4)
    assert [record.attempt for record in records(stopped)] == [1, 1, 2, 2, 3, 3]
    assert [record.attempt for record in records(undisturbed)] == [1, 1, 2, 2, 2, 2]
    return Runs(stopped, undisturbed)


def test_a_sharded_run_that_is_stopped_goes_on_from_its_checkpoint_with_the_same_bits(runs: Runs) -> None:
    assert learned(runs.stopped) == learned(runs.undisturbed)
    mine, others = weights(runs.stopped), weights(runs.undisturbed)
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_a_sharded_run_from_a_checkpoint_of_ddp_learns_what_ddp_learns(two_ranks: Path, runs: Runs) -> None:
    assert_learned_the_same(runs.stopped, two_ranks)


def assert_learned_the_same(folder: Path, other: Path) -> None:
    """Metrics and exported weights, as exactly as float32 sums in another order are the same."""
    for mine, others in zip(learned(folder), learned(other), strict=True):
        assert mine == pytest.approx(others, abs=1e-6, rel=1e-5)
    exported, expected = weights(folder), weights(other)
    assert exported.keys() == expected.keys()
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("strategy", ["FSDP2", pytest.param("ZeRO3", marks=pytest.mark.matrix)])
def test_a_sharded_run_learns_what_ddp_learns_which_goes_on_from_its_checkpoint(
    strategy: str, two_ranks: Path, tmp_path: Path
) -> None:
    train_until(3, pod_of(strategy, tmp_path, attempt=1, hang_at=3), resumed_from_step=None)
    train_to_the_end(pod_of("DDP", tmp_path, attempt=2), resumed_from_step=3)
    assert_learned_the_same(tmp_path, two_ranks)


@pytest.mark.parametrize(
    "strategy", ["FSDP2", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("ZeRO2", "ZeRO3"))]
)
def test_one_process_learns_what_two_under_ddp_learn(strategy: str, two_ranks: Path, tmp_path: Path) -> None:
    assert TrainerPod(tmp_path, job(num_ranks=1, strategy=strategy)).end()[0] == 0
    assert_learned_the_same(tmp_path, two_ranks)
