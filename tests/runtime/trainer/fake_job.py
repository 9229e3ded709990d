"""The job that trainer pods over FakeEngines run, and what it leaves."""

from collections.abc import Mapping
from pathlib import Path

import torch
from pod_builder import run_config
from safetensors.torch import load_file

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

STEPS = 6
TIMINGS = ("time/", "checkpoint/", "step_time", "tokens_per_second", "sync/")


def job(*, num_ranks: int = 2, strategy: str = "DDP", num_steps: int = STEPS, **spec: object) -> RunConfig:
    algorithm = {
        "steps": num_steps,
        "promptsPerStep": 8,
        "groupSize": 8,
        "numIterations": 2,
        "optimizer": {"learningRate": 2e-4, "schedule": "cosine", "warmupSteps": 1},
    }
    sections = {
        "algorithm": algorithm,
        "sampling": {"maxTokens": 4},
        "trainer": {"processesPerNode": num_ranks, "strategy": strategy},
        "checkpoint": {"everySteps": 2},
    }
    return run_config(**{**sections, **spec})


def records(folder: Path) -> list[MetricsRecord]:
    return read_metrics(folder / "output" / "metrics.jsonl")


def learned(folder: Path) -> list[Mapping[str, float]]:
    """The metrics of every step without what a clock decides."""
    return [
        {name: value for name, value in record.values.items() if not name.startswith(TIMINGS)}
        for record in records(folder)
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "output" / "model" / "model.safetensors")
