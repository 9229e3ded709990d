"""Whole jobs that train an adapter, over FakeEngines: one that is stopped continues with the same bits, on
one rank and on two, and a checkpoint for another adapter is refused."""

from pathlib import Path

import pytest
import torch
from fake_job import STEPS, job, learned
from safetensors.torch import load_file
from trainer_pod import TrainerPod

pytestmark = pytest.mark.processes

LORA = {"source": "builtin://tiny", "lora": {"rank": 4, "exportMerged": True}}
CASES = [
    (2, "FSDP2"),
    pytest.param(1, "DDP", marks=pytest.mark.matrix),
    *(pytest.param(2, name, marks=pytest.mark.matrix) for name in ("DDP", "ZeRO1", "ZeRO2", "ZeRO3")),
]


def pod(
    folder: Path, *, num_ranks: int, strategy: str, attempt: int, hang_at: int | None = None, rank: int = 4
) -> TrainerPod:
    model = LORA | {"lora": {"rank": rank, "exportMerged": True}}
    run = job(num_ranks=num_ranks, strategy=strategy, model=model)
    return TrainerPod(folder, run, attempt=attempt, hang_at=hang_at)


def files(folder: Path) -> dict[str, torch.Tensor]:
    """The exported adapter and model, and the newest checkpoint."""
    newest = folder / "output" / "checkpoints" / f"step-{STEPS:06d}"
    paths = {
        "adapter": folder / "output" / "model" / "adapter_model.safetensors",
        "merged": folder / "output" / "merged" / "model.safetensors",
        "optimizer": newest / "optimizer.safetensors",
        "saved": newest / "model" / "adapter_model.safetensors",
    }
    return {f"{kind}/{name}": t for kind, path in paths.items() for name, t in load_file(path).items()}


@pytest.mark.parametrize(("num_ranks", "strategy"), CASES)
def test_a_stopped_run_goes_on_from_its_adapter_with_the_same_bits(
    num_ranks: int, strategy: str, tmp_path: Path
) -> None:
    stopped, undisturbed = tmp_path / "stopped", tmp_path / "undisturbed"
    for folder in (stopped, undisturbed):
        folder.mkdir()
    code, message = pod(undisturbed, num_ranks=num_ranks, strategy=strategy, attempt=1).end()
    assert code == 0, message

    first = pod(stopped, num_ranks=num_ranks, strategy=strategy, attempt=1, hang_at=3)
    first.wait_until(lambda progress: progress.step == 3)
    first.terminate()
    assert first.end()[0] == 143
    code, message = pod(stopped, num_ranks=num_ranks, strategy=strategy, attempt=2).end()
    assert code == 0, message
    assert message.progress is not None
    assert (message.progress.resumed_from_step, message.progress.step) == (3, STEPS)

    assert learned(stopped) == learned(undisturbed)
    mine, others = files(stopped), files(undisturbed)
    assert mine.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in mine.items())
    assert any(tensor.any() for name, tensor in mine.items() if "adapter" in name and "lora_B" in name)


def test_a_checkpoint_of_another_adapter_ends_the_job(tmp_path: Path) -> None:
    first = pod(tmp_path, num_ranks=1, strategy="DDP", attempt=1, hang_at=2)
    first.wait_until(lambda progress: progress.step == 2)
    first.terminate()
    assert first.end()[0] == 143
    code, message = pod(tmp_path, num_ranks=1, strategy="DDP", attempt=2, rank=8).end()
    assert code == 40
    assert "has an adapter with r 4, and the job asks for 8" in message.message
