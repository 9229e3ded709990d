"""The same job of mode Colocated with its engine in each place that it can have."""

import hashlib
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from grpo_bench.local_run import trained

WAYS: dict[str, dict[str, Any]] = {
    "Shared": {},
    "Own": {"engine": {"process": "Own"}},
    "Ray": {"colocated": {"executor": "Ray"}},
}
"""By the name that is printed: what the spec says of where an engine lives. The first is the default."""
NUM_WARM = 3
"""Steps that are not counted: vLLM compiles, and memory is used for the first time."""


@dataclass(frozen=True)
class Found:
    """What one run did. `tokens` stands for all completions, `weights` for the trained model."""

    way: str
    seconds: float
    step_seconds: float
    sync_seconds: float
    tokens: tuple[float, ...]
    weights: str

    @property
    def computed(self) -> tuple[tuple[float, ...], str]:
        """What must be the same wherever the engine lives."""
        return self.tokens, self.weights


def run(way: str, *, steps: int, processes: int) -> Found:
    """Train once. Raises BenchError when the job fails."""
    began = time.monotonic()
    with trained(_job(WAYS[way], steps=steps, processes=processes), what=way) as (records, output):
        seconds = time.monotonic() - began
        counted = [record.values for record in records[NUM_WARM:]]
        return Found(
            way=way,
            seconds=seconds,
            step_seconds=median(values["step_time"] for values in counted),
            sync_seconds=median(values["time/sync_seconds"] for values in counted),
            tokens=tuple(record.values["completions/crc32"] for record in records),
            weights=hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest(),
        )


def _job(changes: dict[str, Any], *, steps: int, processes: int) -> dict[str, Any]:
    engine = {"maxModelLen": 64, "kvCacheMemory": "64Mi", **changes.get("engine", {})}
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "executors"},
        "spec": {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "builtin://copy"},
            "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
            "algorithm": {
                "steps": steps,
                "promptsPerStep": 16,
                "groupSize": 8,
                "optimizer": {"learningRate": 1e-3},
            },
            "sampling": {"maxTokens": 4},
            "trainer": {"processesPerNode": processes},
            **changes,
            "engine": engine,
        },
    }
