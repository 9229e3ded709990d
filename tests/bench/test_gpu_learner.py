"""`bench/gpu/learner.py` on the CPU, by the code that measures a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_gpu.learner import WAYS, Load, Way, a_model, figures
from grpo_gpu.shapes import SHAPES, Shape
from grpo_runtime.trainer.distributed import Ranks

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu" / "learner.py"
LOAD = Load(SHAPES["tiny"], num_sequences=8, longest=24, budget=64, num_rounds=2)


@pytest.mark.matrix
def test_every_way_learns_the_same_from_the_same_batch(tmp_path: Path) -> None:
    options = {"size": "tiny", "sequences": 8, "tokens": 24, "budget": 64, "rounds": 2, "device": "cpu"}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(SCRIPT), *given, "--json", str(tmp_path / "out.jsonl")]
    subprocess.run(command, check=True, timeout=300)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["way"] for line in lines] == [way.name for way in WAYS]
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(sum(LOAD.lengths) / line["seconds"])
        assert line["share"] is None
        for name in ("loss", "grad_norm", "batch/micro_batches", "batch/computed_share"):
            assert line["metrics"][name] == pytest.approx(lines[0]["metrics"][name], rel=1e-4, abs=1e-6)


WIDE = Shape(hidden=128, intermediate=256, num_layers=4, num_heads=4, num_kv_heads=2, vocab_size=2048)


@pytest.mark.matrix
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_plan_of_memory_is_what_is_measured(way: Way, ranks: Ranks) -> None:
    load = Load(WIDE, num_sequences=16, longest=128, budget=1024, num_rounds=2)
    found = figures(load, way, ranks=ranks, device=torch.device("cpu"), peak=None)
    assert 0.9 * found.peak_bytes <= found.planned_bytes <= 1.25 * found.peak_bytes


def test_the_operations_of_a_step_are_those_of_the_matrices_and_of_causal_attention() -> None:
    shape = SHAPES["tiny"]
    model = a_model(shape)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert shape.computed_parameters == matrices - shape.hidden * shape.vocab_size
    attention = 6 * shape.num_layers * shape.hidden * 10
    assert shape.operations([10]) == 10 * (6 * shape.computed_parameters + attention)
