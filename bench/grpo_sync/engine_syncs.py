"""A process that starts vLLM engines of one model and syncs fleets of them.

Arguments: the process id of its parent, the backend as a spec names it, the size in MB, the folder of the
model, and numbers of engines. It prints a line of JSON for each number.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from grpo_api.v1alpha1.spec import WeightSyncBackend
from grpo_bench.errors import BenchError
from grpo_bench.example_job import context_of_example
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.engine_processes import EngineProcesses
from grpo_runtime.local.environments import trainer_environment
from grpo_runtime.process.lifetime import die_with
from grpo_runtime.settings import TrainerSettings, read_trainer_settings


def main(backend: WeightSyncBackend, size_mb: int, model: Path, numbers: Sequence[int]) -> None:
    """Start as many engines as the largest fleet needs, and measure every fleet."""
    with context_of_example(backend) as example:
        context = _with_model(example, model, num_engines=max(numbers))
        engines = EngineProcesses(context)
        engines.start(now=time.monotonic())
        # engines refuse an attempt that is not later than the one before
        fleets = [
            _settings(context, engines.ports[:number], attempt=attempt)
            for attempt, number in enumerate(numbers, start=1)
        ]
        # imported after the engines have started: torch starts threads, and a fork must not have several
        from grpo_sync.fleet_syncs import measure

        for settings in fleets:
            case = asyncio.run(measure(settings, context, model=model, size_mb=size_mb))
            print(json.dumps(asdict(case)), flush=True)


def _with_model(context: LocalContext, model: Path, *, num_engines: int) -> LocalContext:
    """The example with another model and another number of engines."""
    run = context.run_config
    run = run.model_copy(
        update={
            "model": run.model.model_copy(update={"source": model.absolute().as_uri()}),
            "topology": run.topology.model_copy(update={"rollout_replicas": num_engines}),
        }
    )
    context.workspace.run_config.write_text(run.model_dump_json(by_alias=True))
    return replace(context, run_config=run)


def _settings(context: LocalContext, ports: Sequence[int], *, attempt: int) -> TrainerSettings:
    """As the trainer of a job with these engines reads them."""
    return read_trainer_settings(
        trainer_environment(
            context.run_config,
            context.workspace,
            attempt=attempt,
            index=0,
            cache=context.fresh_cache(f"trainer-{attempt}"),
            rollout_ports=ports,
        )
    )


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    try:
        numbers = [int(number) for number in sys.argv[5:]]
        main(WeightSyncBackend(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), numbers)
    except BenchError as error:
        sys.exit(f"error: {error}")
