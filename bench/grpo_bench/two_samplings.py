"""Two ways of sampling a step from the engines of a job: a call for each sample, and bundles of samples."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_bench.example_job import context_of_example
from grpo_bench.pairs import Way
from grpo_runtime.local.engine_processes import EngineProcesses
from grpo_runtime.local.environments import trainer_environment
from grpo_runtime.settings import read_trainer_settings


@contextmanager
def two_ways() -> Iterator[tuple[Way, Way]]:
    """Both ways, with the engines and steps of the copy example."""
    with context_of_example() as context:
        engines = EngineProcesses(context)
        engines.start(now=time.monotonic())
        settings = read_trainer_settings(
            trainer_environment(
                context.run_config,
                context.workspace,
                attempt=1,
                index=0,
                cache=context.fresh_cache("trainer-0"),
                rollout_ports=engines.ports,
            )
        )
        # imported after the engines have started: torch starts threads, and a fork must not have several
        from grpo_bench.sampler import joined_sampler

        with asyncio.Runner() as runner, joined_sampler(settings, context, runner) as sampler:
            yield (
                Way("a call for each sample", sampler.one_by_one),
                Way("bundles", sampler.in_bundles),
            )
