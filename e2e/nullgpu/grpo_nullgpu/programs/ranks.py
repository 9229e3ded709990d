"""Two ranks that train one policy under DDP and then under a sharded strategy: see `sharded_ranks` of
tests/runtime/trainer, which they run as forks of one process.

ranks.py STRATEGY NUM_RUNS   prints for each run, as a line of JSON, what rank 0 found under each strategy,
                             and a digest of weights, moments and what engines are given
"""

import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sharded_ranks
from forks import SCRIPT_SERVER, run_ranks
from pod_builder import free_port
from safetensors import safe_open
from tiny_families import write_tied_model


def main(strategy: str, num_runs: int) -> None:
    with TemporaryDirectory() as folder:
        model = Path(folder, "model")
        write_tied_model(model)
        for number in range(num_runs):
            results = Path(folder, str(number))
            results.mkdir()
            arguments = (str(free_port()), str(model), str(results), "float32", strategy)
            run_ranks(Path(sharded_ranks.__file__), *arguments, strategy=strategy)
            print(json.dumps({name: found(results / f"{name}-0.safetensors") for name in ("DDP", strategy)}))
    SCRIPT_SERVER.close()


def found(result: Path) -> dict[str, Any]:
    """What rank 0 wrote."""
    digest = hashlib.sha256()
    with safe_open(result, framework="pt") as file:
        for name in sorted(file.keys()):
            digest.update(file.get_tensor(name).numpy().tobytes())
        measured = json.loads(file.metadata()["found"])
    return {**measured, "digest": digest.hexdigest()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
