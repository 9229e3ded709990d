"""A run whose output stays on the machine, as that of `grpo-runtime run`, keeps a journal without a claim."""

from pathlib import Path

import pytest
import torch
from fake_job import STEPS, job, learned, records, weights
from trainer_pod import TrainerPod

from grpo_api.contract.run_config import RunConfig

pytestmark = pytest.mark.processes


def kept(*, journal: bool | None = None) -> RunConfig:
    run = job(num_ranks=1, checkpoint={"everySteps": 50, "journal": journal})
    return run.model_copy(update={"is_output_local": True})


def test_what_is_killed_before_its_first_checkpoint_generates_nothing_again(tmp_path: Path) -> None:
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for folder in (killed, undisturbed):
        folder.mkdir()
    first = TrainerPod(killed, kept(), hang_at=3)
    first.wait_until(lambda progress: progress.step == 3)
    first.kill_rank(0)
    assert first.end()[0] != 0
    code, message = TrainerPod(killed, kept(), attempt=2).end()
    assert code == 0, message
    assert message.progress is not None
    assert message.progress.resumed_from_step is None
    replayed = [record.values["journal/replayed_samples"] for record in records(killed)]
    assert replayed == [64.0] * 3 + [0.0] * (STEPS - 3)

    # a run without a journal learns the same, to the bit
    code, message = TrainerPod(undisturbed, kept(journal=False)).end()
    assert code == 0, message
    assert not (undisturbed / "output" / "journal").exists()
    mine, theirs = weights(killed), weights(undisturbed)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    assert [step["reward"] for step in learned(killed)] == [step["reward"] for step in learned(undisturbed)]
