"""`model.lora` on real engines, in both modes: the reward rises, engines have the trainer's weights, and what
is left is the adapter, and the whole model where it is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from local_command import LocalCommand
from peft import PeftModel
from polling import wait_until
from safetensors.torch import load_file, save_file
from test_local_run_on_engines import REAL_RUN, START_SECONDS, shortened
from transformers import AutoModelForCausalLM

from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.report.metrics_file import read_metrics

pytestmark = pytest.mark.engine

STEPS = 25
BFLOAT16_BOUNDS = {
    "sampling/sampling_logp_difference/mean": 0.03,
    "sampling/sampling_logp_difference/max": 0.3,
    "sync/max_probe_error": 0.1,
}
"""Nats: three times as much, or more, as passes in bfloat16 differed by."""
LEARNED = 0.2
"""A reward that no policy has whose engines get no adapter. How far 25 steps lead depends on how a CPU
rounds: with AVX2 only to .37, with AVX-512 and AMX to .45 and more."""
MODES: dict[str, dict[str, Any]] = {"Colocated": {}, "Disaggregated": {"rollout": {"replicas": 1}}}


def write_base(into: Path) -> None:
    """The tiny model with a larger head: under that of the tiny model, which stays as it is, no token could
    become likely."""
    write_tiny_model(into)
    weights = load_file(into / "model.safetensors")
    weights["lm_head.weight"] *= 10
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("mode", ["Colocated", pytest.param("Disaggregated", marks=pytest.mark.matrix)])
def test_an_adapter_is_trained_synced_and_exported_alone_and_within_the_model(
    tmp_path: Path, mode: str
) -> None:
    write_base(tmp_path / "base")
    job = shortened(steps=STEPS if mode == "Colocated" else 6)
    job["spec"] |= MODES[mode]
    job["spec"]["model"] = {
        "source": f"file://{tmp_path / 'base'}",
        "lora": {"rank": 16, "exportMerged": True},
    }
    job["spec"]["algorithm"]["optimizer"] = {"learningRate": 0.005}
    run = LocalCommand(tmp_path, job, command=REAL_RUN)
    assert run.end(seconds=START_SECONDS) == 0, run.screen()
    wait_until(lambda: run.others() == [], "no process outlives the command")

    records = read_metrics(tmp_path / "out/metrics.jsonl")
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    for values in (record.values for record in records):
        assert 0 <= values["sync/max_probe_error"] < 1e-4
        assert values.get("sampling/sampling_logp_difference/max", 0.0) < 1e-4
    if mode == "Colocated":
        rewards = [record.values["reward"] for record in records]
        assert rewards[0] < 0.1
        assert sum(rewards[-5:]) / 5 > LEARNED

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    adapted = PeftModel.from_pretrained(base, tmp_path / "out/model")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out/merged", dtype=torch.float32).eval()
    tokens = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        wanted = merged(tokens).logits
        torch.testing.assert_close(adapted(tokens).logits, wanted, atol=1e-4, rtol=1e-4)
        with adapted.disable_adapter():
            assert not torch.allclose(adapted(tokens).logits, wanted, atol=1e-2)
    given = load_file(tmp_path / "base/model.safetensors")
    assert load_file(tmp_path / "out/merged/model.safetensors").keys() == given.keys()
    assert json.loads((tmp_path / "out/model/origin.json").read_text())["source"].startswith("file://")
    assert run.checkpoint() == f"step-{len(records):06d}"
    folder = tmp_path / "out/checkpoints" / run.checkpoint()
    assert [path.name for path in (folder / "model").glob("*.safetensors")] == ["adapter_model.safetensors"]


@pytest.mark.matrix
def test_an_adapter_on_a_model_in_bfloat16_reaches_the_engines_but_for_the_rounding(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    job = shortened(steps=STEPS)
    job["spec"]["model"] = {
        "source": f"file://{tmp_path / 'base'}",
        "dtype": "bfloat16",
        "lora": {"rank": 16},
    }
    job["spec"]["algorithm"]["optimizer"] = {"learningRate": 0.005}
    job["spec"]["checkpoint"] = {"everySteps": 1, "keep": STEPS}
    run = LocalCommand(tmp_path, job, command=REAL_RUN)
    assert run.end(seconds=START_SECONDS) == 0, run.screen()

    records = read_metrics(tmp_path / "out/metrics.jsonl")
    assert len(records) == STEPS
    for name, bound in BFLOAT16_BOUNDS.items():
        # a step in which all rewards of each group are equal is not trained on, and compares nothing
        found = [record.values.get(name, 0.0) for record in records]
        assert 0 < max(found) < bound, (name, found)
    rewards = [record.values["reward"] for record in records]
    assert rewards[0] < 0.1
    assert sum(rewards[-5:]) / 5 > LEARNED
    # the first update is above half a step of bfloat16 for most weights, so the engines see it at once
    assert share_of_changed_weights(tmp_path, step=1) > 0.9


def share_of_changed_weights(folder: Path, *, step: int) -> float:
    """Of the weights below the adapter, how many are another number in bfloat16 with the adapter in them."""
    saved = folder / f"out/checkpoints/step-{step:06d}/model"
    adapter = load_file(saved / "adapter_model.safetensors")
    settings = json.loads((saved / "adapter_config.json").read_text())
    base = load_file(folder / "base/model.safetensors")
    num_changed = num_all = 0
    for name in (name for name in adapter if "lora_A" in name):
        weight = base[name.removeprefix("base_model.model.").replace(".lora_A.", ".")].bfloat16()
        delta = adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
        merged = (weight.float() + settings["lora_alpha"] / settings["r"] * delta).bfloat16()
        num_changed += int((merged != weight).sum())
        num_all += weight.numel()
    return num_changed / num_all
