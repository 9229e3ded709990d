"""The part of a trainer that gives weights to the engines and samples from them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from transformers.utils.logging import disable_progress_bar

from grpo_api.contract.versions import PolicyVersion
from grpo_bench.cpu_time import seconds_of_descendants
from grpo_bench.errors import BenchError
from grpo_bench.pairs import Amounts
from grpo_bench.same_tokens import SameTokens
from grpo_bench.scene import require_all_alive
from grpo_runtime.data.source import load_prompts
from grpo_runtime.local.scene import Scene
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.source import materialise_model
from grpo_runtime.rollout.bundle import bundle
from grpo_runtime.rollout.fleet import Fleet, fleet_settings
from grpo_runtime.rollout.interface import GenerateRequest
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.probe import make_probe
from grpo_runtime.trainer.prompting import make_requests

STEPS_PER_RUN = 4
"""The kernel counts CPU time in hundredths of a second, and a step takes some tens of them."""
_LOOK_SECONDS = 0.5
_WARM_UP = -1


@contextmanager
def joined_sampler(settings: TrainerSettings, scene: Scene, runner: asyncio.Runner) -> Iterator["Sampler"]:
    """A sampler whose engines all have its weights, verified, and have drawn a few steps each way."""
    disable_progress_bar()
    fleet = Fleet(fleet_settings(settings))
    try:
        sampler = Sampler(settings, scene, fleet, runner)
        runner.run(sampler.join())
        sampler.one_by_one(_WARM_UP)
        sampler.in_bundles(_WARM_UP)
        yield sampler
    finally:
        runner.run(fleet.close())


class Sampler:
    """Draws the completions of steps through the fleet, as the training loop does. It waits in `runner`."""

    def __init__(self, settings: TrainerSettings, scene: Scene, fleet: Fleet, runner: asyncio.Runner) -> None:
        run = settings.run
        model = materialise_model(
            run.model, hub=run.hub, volumes_dir=settings.volumes_dir, into=settings.cache_dir / "model"
        )
        self._run = run
        self._scene = scene
        self._fleet = fleet
        self._runner = runner
        self._policy = Policy(
            load_policy(model.folder, dtype=MASTER_DTYPE),
            temperature=run.sampling.temperature,
            dtype=run.model.dtype,
        )
        self._tokenizer = load_tokenizer(model.folder)
        self._prompts = load_prompts(run, volumes_dir=settings.volumes_dir)[: run.algorithm.prompts_per_step]
        self._same = SameTokens()

    async def join(self) -> None:
        """Give every engine of the job the weights.

        Raises BenchError when one of them ends or cannot be given them.
        """
        version, probe = PolicyVersion(1, 0), make_probe(self._policy, self._run)
        sync = asyncio.ensure_future(
            self._fleet.sync(self._policy.engine_weights, version=version, probe=probe)
        )
        try:
            while not sync.done():
                require_all_alive(self._scene)
                await asyncio.wait({sync}, timeout=_LOOK_SECONDS)
        finally:
            sync.cancel()
        report, num_engines = sync.result(), self._run.topology.rollout_replicas
        if len(report.synced) != num_engines:
            raise BenchError(
                f"{len(report.synced)} of {num_engines} engines took the weights: {dict(report.failed)}"
            )

    def one_by_one(self, number: int) -> Amounts:
        """Every sample in a call of its own: asked for backwards, no seed follows on the one before."""
        return self._measure(number, is_backwards=True)

    def in_bundles(self, number: int) -> Amounts:
        """As the training loop asks for them."""
        return self._measure(number, is_backwards=False)

    def _measure(self, number: int, *, is_backwards: bool) -> Amounts:
        """What one step took, in the mean of several, which are the same for every way of that number."""
        turned = slice(None, None, -1 if is_backwards else 1)
        steps = range(number * STEPS_PER_RUN, (number + 1) * STEPS_PER_RUN)
        work = {step: self._requests(step)[turned] for step in steps}
        engines_began, trainer_began, began = seconds_of_descendants(), time.process_time(), time.monotonic()
        drawn = {step: self._runner.run(self._fleet.generate(requests)) for step, requests in work.items()}
        seconds, trainer = time.monotonic() - began, time.process_time() - trainer_began
        engines = seconds_of_descendants() - engines_began
        # the fleet would go on with fewer engines
        require_all_alive(self._scene)
        for step, rollouts in drawn.items():
            self._same.check(step, [rollout.completion_ids for rollout in rollouts[turned]])
        amounts = {
            "seconds": seconds,
            "CPU seconds of the engines": engines,
            "CPU seconds of the trainer": trainer,
            "calls": sum(self._num_calls(requests) for requests in work.values()),
        }
        return {f"{quantity} per step": amount / STEPS_PER_RUN for quantity, amount in amounts.items()}

    def _requests(self, step: int) -> list[GenerateRequest]:
        return make_requests(self._prompts, step=step, run=self._run, tokenizer=self._tokenizer)

    def _num_calls(self, requests: Sequence[GenerateRequest]) -> int:
        """In how many calls the fleet sends them."""
        return len(bundle(requests, num_engines=self._run.topology.rollout_replicas))
