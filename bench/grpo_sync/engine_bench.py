"""Measures the syncs of fleets of vLLM engines, each model in a process of its own.

Engines must be started by a process that has not imported torch yet; this one has.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_api.contract.weight_sync_choice import REGISTRY_NAMES
from grpo_api.v1alpha1.spec import WeightSyncBackend
from grpo_bench.errors import BenchError
from grpo_sync.amounts import EngineCase
from grpo_sync.model_folder import write_model
from grpo_sync.model_shape import shape_of
from grpo_sync.options import Options
from grpo_sync.progress import say

_BENCH = Path(__file__).parents[1]
_BACKENDS = (WeightSyncBackend.GLOO, WeightSyncBackend.SHARED_MEMORY)
"""Those of a fleet: one between pods, one on a machine."""
_MAX_MB = 100
_FLOAT32_BYTES = 4
_STOP_SECONDS = 30.0


def measure(options: Options) -> list[EngineCase]:
    """All cases with vLLM, one model after the other. Raises BenchError when one fails."""
    cases: list[EngineCase] = []
    backends = backends_called(options.backends)
    for size_mb in options.sizes:
        if size_mb > _MAX_MB or not backends:
            continue
        with TemporaryDirectory(prefix="grpo-bench-model-") as folder:
            say(f"{size_mb} MB in float32: writing the model")
            write_model(Path(folder), shape_of(size_mb * 1_000_000 // _FLOAT32_BYTES))
            for backend in backends:
                say(f"{size_mb} MB in float32: starting {max(options.engines)} engines for {backend}")
                cases += _measure_one(backend, size_mb, Path(folder), options.engines)
    return cases


def backends_called(names: Sequence[str]) -> list[WeightSyncBackend]:
    """Those of a fleet that have one of these names in the registry; all without names."""
    return [backend for backend in _BACKENDS if not names or REGISTRY_NAMES[backend] in names]


def _measure_one(
    backend: WeightSyncBackend, size_mb: int, folder: Path, engines: Sequence[int]
) -> list[EngineCase]:
    command = [sys.executable, "-m", "grpo_sync.engine_syncs", str(os.getpid()), backend.value, str(size_mb)]
    process = subprocess.Popen(
        [*command, str(folder), *map(str, engines)],
        env={**os.environ, "PYTHONPATH": str(_BENCH), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C in a terminal reaches this process alone, which ends that one
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate()
    finally:
        if process.poll() is None:
            # it ends its engines then
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_SECONDS)
    if process.returncode != 0:
        raise BenchError(f"the syncs of {size_mb} MB with vLLM ended with exit code {process.returncode}")
    return [EngineCase(**json.loads(line)) for line in printed.splitlines() if line.startswith("{")]
