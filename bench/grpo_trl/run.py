"""Runs both sides in turn, as often as the options ask for, and prints the tables."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_sync.progress import say
from grpo_trl.batches import our_job
from grpo_trl.cases import CASES, Case
from grpo_trl.environment import trl_python
from grpo_trl.options import Options
from grpo_trl.report import CaseResult, Result, json_line, tables
from grpo_trl.sides import TRL, Sides
from grpo_trl.steps import Step

RunSide = Callable[[int], list[Step]]
"""The number of a pair -> the steps of one run."""


def run(options: Options) -> int:
    """Print the tables. Returns 0, or 1 with a sentence when something cannot be compared."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    load_average = os.getloadavg()[0]
    try:
        python = trl_python()
        deadline = time.monotonic() + options.limit_seconds
        cases = [_measure(CASES[name], options, python=python, deadline=deadline) for name in options.cases]
    except BenchError as error:
        say(f"error: {error}")
        return 1
    result = Result(cases=cases, load_average=load_average, circumstances=circumstances())
    print(tables(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json_line(result) + "\n")
    return 0


def side_names(case: Case, processes: Sequence[int]) -> dict[str, int | None]:
    """Our sides: name -> trainer.processesPerNode, without those that are what the default is."""
    job = parse_job(our_job(case, model=Path("/model"), dataset=Path("/prompts.jsonl"), processes=None))
    default = resolve(job, is_one_machine=True).topology.world_size
    others = [number for number in processes if number != default]
    return {
        f"ours, processes {default} (default)": None,
        **{f"ours, processes {number}": number for number in others},
    }


def _measure(case: Case, options: Options, *, python: Path, deadline: float) -> CaseResult:
    with TemporaryDirectory(prefix="grpo-bench-") as folder:
        sides = Sides(case=case, folder=Path(folder), trl_python=python, deadline=deadline)
        num_parameters = sides.prepare()
        ways: dict[str, RunSide] = {TRL: sides.trl}
        for name, processes in side_names(case, options.processes).items():
            ways[name] = partial(sides.ours, processes=processes)
        runs: dict[str, list[list[Step]]] = {name: [] for name in ways}
        longest = 0.0
        for number in range(options.num_pairs):
            began = time.monotonic()
            if number > 0 and began + longest > deadline:
                say(f"{case.name}: no time for pair {number + 1} of {options.num_pairs}")
                break
            for name, run_side in ways.items():
                runs[name].append(run_side(number))
                seconds = ", ".join(f"{step.seconds:.3g}" for step in runs[name][-1][:5])
                say(f"{case.name}, pair {number + 1} of {options.num_pairs}: {name} {seconds} s")
            longest = max(longest, time.monotonic() - began)
    return CaseResult(case=case, num_parameters=num_parameters, runs=runs)
