"""Sampling a step's completions from the engines of a job: a call for each sample, and bundles of samples."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_bench.pairs import Way
from grpo_bench.scene import scene_of_example
from grpo_runtime.local.engines import Engines
from grpo_runtime.local.environments import trainer_environment
from grpo_runtime.settings import read_trainer_settings


@contextmanager
def two_ways() -> Iterator[tuple[Way, Way]]:
    """With the engines and the step of the copy example."""
    with scene_of_example() as scene:
        engines = Engines(scene)
        engines.start(now=time.monotonic())
        settings = read_trainer_settings(
            trainer_environment(
                scene.run,
                scene.workspace,
                attempt=1,
                index=0,
                cache=scene.fresh_cache("trainer-0"),
                rollout_ports=engines.ports,
            )
        )
        # torch comes with threads, and processes are started from a process with one
        from grpo_bench.sampler import joined_sampler

        with asyncio.Runner() as runner, joined_sampler(settings, scene, runner) as sampler:
            yield (
                Way("a call for each sample", sampler.one_by_one),
                Way("bundles", sampler.in_bundles),
            )
