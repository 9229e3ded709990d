"""A run that was stopped continues with another number of ranks, from a checkpoint that all ranks wrote or
that rank 0 wrote, and writes its own in the other way."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fake_job import job, weights
from pod_builder import free_port
from trainer_pod import TrainerPod
from transformers import AutoModelForCausalLM

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.trainer.checkpoint.contents import read_training_state

pytestmark = pytest.mark.processes

BEGUN, NUM_STEPS = 2, 12
"""The step of the checkpoint, and the last one: ten steps are trained after it."""
CLAIM = {"claimName": "claim", "everySteps": 5}


@dataclass(frozen=True)
class Way:
    """How many ranks train, and whether each of them writes its share of a checkpoint."""

    num_ranks: int
    is_shared: bool

    def job(self, strategy: str) -> RunConfig:
        checkpoint = {**CLAIM, "shared": True} if self.is_shared else CLAIM
        return job(num_ranks=self.num_ranks, strategy=strategy, num_steps=NUM_STEPS, checkpoint=checkpoint)


TWO_SHARED, ONE = Way(2, is_shared=True), Way(1, is_shared=False)
BOTH_WAYS = [(TWO_SHARED, ONE), (ONE, TWO_SHARED)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run under DDP that nothing stopped."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, message = TrainerPod(folder, job(num_steps=NUM_STEPS)).end()
    assert code == 0, message
    return folder


def files_of(checkpoint: Path) -> set[str]:
    """The files with tensors."""
    return {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*.safetensors")}


def expected_files(way: Way) -> set[str]:
    if not way.is_shared:
        return {"model/model.safetensors", "optimizer.safetensors"}
    return {
        f"{kind}-{rank + 1:05d}-of-{way.num_ranks:05d}.safetensors"
        for kind in ("model/model", "optimizer")
        for rank in range(way.num_ranks)
    }


def cases() -> Iterator[object]:
    for strategy in ("DDP", "FSDP2", "ZeRO1", "ZeRO2", "ZeRO3"):
        for before, after in BOTH_WAYS:
            marks = () if strategy == "FSDP2" else (pytest.mark.matrix,)
            name = f"{strategy} from {before.num_ranks} to {after.num_ranks}"
            yield pytest.param(strategy, before, after, id=name, marks=marks)


@pytest.mark.parametrize(("strategy", "before", "after"), list(cases()))
def test_a_run_goes_on_with_another_number_of_ranks_and_learns_the_same(
    strategy: str, before: Way, after: Way, undisturbed: Path, tmp_path: Path
) -> None:
    first = TrainerPod(tmp_path, before.job(strategy), attempt=1, hang_at=BEGUN)
    first.wait_until(lambda progress: progress.step == BEGUN)
    first.terminate()
    code, message = first.end()
    assert code == 143, message
    checkpoints = tmp_path / "output" / "checkpoints"
    assert files_of(checkpoints / f"step-{BEGUN:06d}") == expected_files(before)

    code, message = TrainerPod(tmp_path, after.job(strategy), attempt=2).end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.step) == (BEGUN, NUM_STEPS)
    newest = checkpoints / f"step-{NUM_STEPS:06d}"
    assert files_of(newest) == expected_files(after)

    expected, found = weights(undisturbed), weights(tmp_path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0)
    saved = read_training_state(newest).model
    assert all(torch.equal(saved[name], tensor) for name, tensor in found.items())
    loaded = AutoModelForCausalLM.from_pretrained(newest / "model").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def test_ranks_of_two_pods_share_a_checkpoint_evenly(tmp_path: Path) -> None:
    codes, _ = ends_of_two_pods(tmp_path, {})
    assert codes == [0, 0]
    newest = tmp_path / "output" / "checkpoints" / "step-000002"
    assert files_of(newest) == expected_files(TWO_SHARED)
    sizes = [path.stat().st_size for path in sorted(newest.glob("optimizer-*"))]
    assert max(sizes) < 1.2 * min(sizes)
    index = json.loads((newest / "model" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(weights(tmp_path))
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in weights(tmp_path).values())


def test_a_claim_that_two_pods_do_not_see_as_one_ends_the_job_and_is_named(tmp_path: Path) -> None:
    codes, messages = ends_of_two_pods(tmp_path, {"GRPO_OUTPUT_DIR": str(tmp_path / "another")})
    assert codes[0] == 40
    assert "00002-of-00002" in messages[0] and "remove checkpoint.shared" in messages[0]
    assert not list((tmp_path / "output" / "checkpoints").glob("step-*"))


def ends_of_two_pods(folder: Path, environment_of_second: dict[str, str]) -> tuple[list[int], list[str]]:
    """Exit codes and messages of a run of two steps with a rank in each of two pods."""
    run = job(
        num_steps=2,
        trainer={"numNodes": 2, "processesPerNode": 1},
        checkpoint={**CLAIM, "shared": True},
    )
    port = free_port()
    pods = [
        TrainerPod(folder, run, node_index=index, rendezvous_port=port, environment=environment)
        for index, environment in enumerate(({}, environment_of_second))
    ]
    ends = [pod.end() for pod in pods]
    return [code for code, _ in ends], [message.message for _, message in ends]
