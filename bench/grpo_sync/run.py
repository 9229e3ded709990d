"""Measures all that the options ask for, and prints it."""

import os
import signal
import sys
import threading

from grpo_bench.errors import BenchError
from grpo_bench.machine import circumstances
from grpo_sync import plain_bench
from grpo_sync.amounts import EngineCase
from grpo_sync.options import Options
from grpo_sync.progress import say
from grpo_sync.report import Result, json_line, tables

_STOPS = (signal.SIGINT, signal.SIGTERM)
_STOP_SECONDS = 20.0


def run(options: Options) -> int:
    """Print the tables. Returns 0, or 1 with a sentence when something cannot be measured."""
    for stop in _STOPS:
        signal.signal(stop, lambda number, _: _stop(128 + number))
    load_average = os.getloadavg()[0]
    try:
        cases = plain_bench.measure(options)
        engine_cases = _with_engines(options)
    except BenchError as error:
        say(f"error: {error}")
        return 1
    result = Result(
        cases=cases, engine_cases=engine_cases, load_average=load_average, circumstances=circumstances()
    )
    print(tables(result))
    if options.json:
        with options.json.open("a") as file:
            file.write(json_line(result) + "\n")
    return 0


def _with_engines(options: Options) -> list[EngineCase]:
    if not options.engines:
        return []
    # a slow import, which a run without vLLM does not need
    from grpo_sync.engine_bench import measure

    return measure(options)


def _stop(exit_code: int) -> None:
    """End in order, or else at once after a while: a gloo thread may wait for a dead peer until its deadline.

    The kernel kills what was started when this process ends.
    """
    for stop in _STOPS:
        # a second one would break off what the first has begun to end
        signal.signal(stop, signal.SIG_IGN)
    timer = threading.Timer(_STOP_SECONDS, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
    sys.exit(exit_code)
