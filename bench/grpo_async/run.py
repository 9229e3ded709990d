"""Runs every way of every case in turn, as often as the options ask for, and prints the tables."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

from grpo_async.cases import CASES, Case, Way
from grpo_async.engine_runs import train_on_engine
from grpo_async.options import Options
from grpo_async.results import CaseResult, Measured, costs_of, json_line, simulate, table
from grpo_async.scripted_runs import alone, train_scripted
from grpo_async.steps import Run
from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_sync.progress import say

Train = Callable[[Case, Way, int], Run]
"""A case, a way and the seed of the run."""


def run(options: Options) -> int:
    """Print a table for each case. Returns 0, or 1 with sentences when a run fails or a goal is missed."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    here, train, misses = circumstances(), _trainer(options), []
    print(here, flush=True)
    for name in options.cases:
        case = CASES[name] if options.steps is None else replace(CASES[name], steps=options.steps)
        try:
            result = _measure(case, train, num_pairs=options.num_pairs)
        except BenchError as error:
            say(f"error: {error}")
            return 1
        print(f"\n{table(result)}", flush=True)
        misses += result.misses()
        if options.json:
            with options.json.open("a") as file:
                file.write(json_line(result, circumstances=here) + "\n")
    for miss in misses:
        print(f"missed: {miss}")
    return 1 if misses else 0


def _trainer(options: Options) -> Train:
    ranks = alone() if any(CASES[name].scripted for name in options.cases) else None

    def train(case: Case, way: Way, seed: int) -> Run:
        if case.scripted is None:
            return train_on_engine(case, way, seed=seed)
        assert ranks is not None
        return train_scripted(case, way, seed=seed, ranks=ranks)

    return train


def _measure(case: Case, train: Train, *, num_pairs: int) -> CaseResult:
    load_averages = [os.getloadavg()[0]]
    runs: dict[str, list[Measured]] = {way.name: [] for way in case.ways}
    for number in range(num_pairs):
        for way in case.ways:
            measured = _measure_one(case, way, train, seed=number)
            runs[way.name].append(measured)
            load_averages.append(os.getloadavg()[0])
            say(
                f"({case.name}) pair {number + 1} of {num_pairs}, {way.name}: {measured.speed:.3g} steps/s, "
                f"load average {load_averages[-1]:.1f}"
            )
    return CaseResult(case=case, runs=runs, load_averages=load_averages)


def _measure_one(case: Case, way: Way, train: Train, *, seed: int) -> Measured:
    found = train(case, way, seed)
    # it is of the default order, in which nothing is dropped
    is_simulated = not way.fields and (case.scripted is not None or case.latency is not None)
    simulated = (
        simulate(case, way, seed=seed, costs=costs_of(case, found), steps=case.steps_of(way))
        if is_simulated
        else None
    )
    return Measured(case=case, way=way, steps=case.steps, run=found, simulated=simulated)
