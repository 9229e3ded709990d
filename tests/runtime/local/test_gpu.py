"""Whole jobs on GPUs with real engines: `make test-gpu`, where vLLM's CUDA build is installed.

How they run without GPUs: test_local_run_on_engines.py.
"""

import os
import statistics
from importlib.util import find_spec
from pathlib import Path

import pytest
from local_command import LocalCommand
from test_local_run_on_engines import REAL_RUN, records_of_whole, shortened

from grpo_api.contract.run_config import parse_run_config
from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.local.gpus import usable_gpus

STEPS = 150
TOLERANCE = 0.1
"""Of a mean over natural tokens, in nats: engines and trainer compute in bfloat16."""
NUM_GPUS = len(usable_gpus(os.environ)) if find_spec("vllm") else 0
"""Those that a run takes: none with vLLM's CPU build."""


def needs(num_gpus: int) -> pytest.MarkDecorator:
    reason = f"needs {num_gpus} NVIDIA GPU(s) and vLLM's CUDA build: make test-gpu PYTHON= one that has it"
    return pytest.mark.skipif(num_gpus > NUM_GPUS, reason=reason)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rollout", "backend"),
    [
        pytest.param({}, "InProcess", marks=needs(1), id="Colocated"),
        pytest.param({"rollout": {"replicas": 1}}, "NCCL", marks=needs(2), id="Disaggregated"),
    ],
)
def test_a_job_learns_in_bfloat16_with_engines_that_keep_up(
    rollout: dict[str, object], backend: str, tmp_path: Path
) -> None:
    job = shortened(steps=STEPS)
    job["spec"] |= rollout
    run = LocalCommand(tmp_path, job, command=REAL_RUN)
    records = records_of_whole(run, steps=STEPS)
    rewards = [record.values["reward"] for record in records]
    # a random policy begins with .01
    assert statistics.mean(rewards[-10:]) > 0.5
    assert max(record.values["sync/max_probe_error"] for record in records) < TOLERANCE
    resolved = parse_run_config((run.output / "run.json").read_text())
    assert (resolved.model.dtype, resolved.weight_sync.backend.value) == (Dtype.BFLOAT16, backend)
    assert run.checkpoint() == f"step-{STEPS:06d}"
    assert (run.output / "model/model.safetensors").exists()
