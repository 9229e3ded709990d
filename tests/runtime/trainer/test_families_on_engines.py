"""Qwen3, Llama, Gemma and Mixtral in whole jobs on vLLM: they train on chats, sync and continue after a kill.

What the policy computes of each family: tests/runtime/model/test_families.py.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from local_job import start_trainer
from pod_builder import run_config
from safetensors.torch import load_file
from tiny_families import write_tiny_family

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

pytestmark = pytest.mark.engine

SAVED, STEPS = 2, 6
IS_NOT_COMPUTED = ("seconds", "_time", "per_second")
"""How the names of metrics end that depend on the clock."""


def chat_job(folder: Path, *, family: str, **trainer: object) -> RunConfig:
    """Ranks with an engine each that learn to write some letters, with chats as prompts."""
    write_tiny_family(folder / "model", family=family)
    rows = (
        {"prompt": [{"role": "user", "content": f"Repeat the letter {letter}."}]} for letter in "abcdefgh"
    )
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_config(
        mode="Colocated",
        model={"source": f"file://{folder / 'model'}"},
        dataset={"source": f"file://{folder / 'chats.jsonl'}"},
        rewards=[{"name": "letters", "builtin": "regex", "pattern": "[a-h]"}],
        algorithm={
            "steps": 1000,
            "promptsPerStep": 4,
            "groupSize": 4,
            "optimizer": {"learningRate": 1e-3},
        },
        sampling={"maxTokens": 12, "temperature": 0.7},
        trainer=trainer,
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        checkpoint={"everySteps": SAVED, "keep": 100},
    )


def records(folder: Path) -> list[MetricsRecord]:
    return read_metrics(folder / "output" / "metrics.jsonl")


def computed(found: list[MetricsRecord]) -> list[dict[str, float]]:
    """All metrics of the steps from SAVED to STEPS but for the times."""
    return [
        {name: value for name, value in record.values.items() if not name.endswith(IS_NOT_COMPUTED)}
        for record in found
        if SAVED < record.step <= STEPS
    ]


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer."""
    files = [checkpoint / "model" / "model.safetensors", checkpoint / "optimizer.safetensors"]
    return {f"{file.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


@dataclass(frozen=True)
class Case:
    family: str
    num_ranks: int = 1
    strategy: str = "DDP"

    def __str__(self) -> str:
        return f"{self.family}-{self.strategy}-{self.num_ranks}"


SELECTED = (Case("qwen3-moe", 2, "FSDP2"),)
"""Which are in `make test`; the others are in `make test-matrix`."""
MATRIX = (
    *(Case(family) for family in ("qwen3", "llama", "gemma2", "gemma3", "qwen3-moe", "mixtral")),
    Case("qwen3-moe", 2),
    Case("mixtral", 2, "FSDP2"),
)
CASES = [
    pytest.param(case, marks=() if case in SELECTED else pytest.mark.matrix, id=str(case))
    for case in (*SELECTED, *MATRIX)
]


@pytest.mark.parametrize("case", CASES)
def test_a_family_trains_on_chats_syncs_and_goes_on_after_a_kill_with_the_same_bits(
    tmp_path: Path, case: Case
) -> None:
    run = chat_job(tmp_path, family=case.family, processesPerNode=case.num_ranks, strategy=case.strategy)
    trainer = start_trainer(tmp_path, run)
    trainer.wait_until(lambda progress: (progress.checkpoint_step or 0) >= STEPS)
    trainer.kill_rank(0)
    assert trainer.end()[0] == 137, trainer.log()
    first = records(tmp_path)
    # as if the kill had come before anything later was saved
    checkpoints = tmp_path / "output" / "checkpoints"
    for checkpoint in sorted(checkpoints.glob("step-*"))[1:]:
        shutil.move(checkpoint, tmp_path)

    trainer = start_trainer(tmp_path, run, attempt=2)
    progress = trainer.wait_until(lambda progress: (progress.checkpoint_step or 0) >= STEPS)
    assert progress.resumed_from_step == SAVED
    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated"), trainer.log()
    second = records(tmp_path)
    assert computed(second) == computed(first)
    name = f"step-{STEPS:06d}"
    resumed, undisturbed = tensors(checkpoints / name), tensors(tmp_path / name)
    assert resumed.keys() == undisturbed.keys()
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in resumed)

    # some completions reached one of the model's ends, and some were cut
    shares = [record.values["completions/clipped_ratio"] for record in first[:STEPS]]
    assert 0.1 < sum(shares) / STEPS < 0.9

    # it did learn, and engine and trainer computed the same all the time
    start = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in start.items():
        assert not torch.equal(undisturbed[f"model.safetensors/{name}"], tensor), name
    for record in (*first, *second):
        assert record.values["sync/max_probe_error"] < 1e-4, record.step
        # a step in which all rewards of each group are equal computes nothing
        if record.values["batch/computed_share"] > 0:
            assert record.values["sampling/sampling_logp_difference/max"] < 1e-4, record.step
