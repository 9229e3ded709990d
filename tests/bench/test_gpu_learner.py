"""`bench/gpu/learner.py` on the CPU, by the code that measures a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_gpu.learner import WAYS, Load, a_batch, a_model
from grpo_gpu.shapes import SHAPES, peak_of

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu" / "learner.py"
LOAD = Load(SHAPES["tiny"], num_sequences=8, longest=24, budget=64, num_rounds=2)


def test_every_way_learns_the_same_from_the_same_batch(tmp_path: Path) -> None:
    options = {"size": "tiny", "sequences": 8, "tokens": 24, "budget": 64, "rounds": 2, "device": "cpu"}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(SCRIPT), *given, "--json", str(tmp_path / "out.jsonl")]
    subprocess.run(command, check=True, timeout=300)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["way"] for line in lines] == [way.name for way in WAYS]
    for line in lines:
        assert line["tokens_per_second"] == pytest.approx(sum(LOAD.lengths) / line["seconds"])
        assert (line["share"], line["peak_bytes"]) == (None, None)
        for name in ("loss", "grad_norm", "batch/micro_batches", "batch/computed_share"):
            assert line["metrics"][name] == pytest.approx(lines[0]["metrics"][name], rel=1e-4, abs=1e-6)


def test_a_batch_has_the_lengths_that_it_says() -> None:
    assert a_batch(LOAD).lengths == LOAD.lengths
    assert LOAD.lengths == sorted(LOAD.lengths)
    assert (LOAD.lengths[0], LOAD.lengths[-1]) == (13, 24)


def test_the_operations_of_a_step_are_those_of_the_matrices_and_of_causal_attention() -> None:
    shape = SHAPES["tiny"]
    model = a_model(shape)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert shape.computed_parameters == matrices - shape.hidden * shape.vocab_size
    attention = 6 * shape.num_layers * shape.hidden * 10
    assert shape.operations([10]) == 10 * (6 * shape.computed_parameters + attention)


def test_the_peak_of_a_gpu_is_known_or_not_guessed() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA H100 PCIe") is None
    assert peak_of("NVIDIA GeForce RTX 4090") is None
