"""The part of a trainer that sends weights to the engines and samples from them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers.utils.logging import disable_progress_bar

from grpo_api.contract.versions import PolicyVersion
from grpo_bench.cpu_time import seconds_of_descendants
from grpo_bench.errors import BenchError
from grpo_bench.example_job import require_all_alive
from grpo_bench.pairs import Amounts
from grpo_bench.same_tokens import SameTokens
from grpo_runtime.data.source import load_prompts
from grpo_runtime.engines.fleet.engine_calls import bundle
from grpo_runtime.engines.fleet.fleet import Fleet, open_fleet
from grpo_runtime.local.context import LocalContext
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.source import materialise_model
from grpo_runtime.rollouts.interface import GenerateRequest, Probe
from grpo_runtime.rollouts.prompting import make_groups
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.trainer.weight_checks import PROBE_TOLERANCES, probe_tokens

STEPS_PER_RUN = 4
"""The kernel counts CPU time in hundredths of a second, and a step takes some tens of them."""
_LOOK_SECONDS = 0.5
_WARM_UP = -1


@contextmanager
def joined_sampler(
    settings: TrainerSettings, context: LocalContext, runner: asyncio.Runner
) -> Iterator["Sampler"]:
    """A sampler whose engines have its weights, and that has sampled a few steps each way to warm up."""
    disable_progress_bar()
    fleet = open_fleet(settings)
    try:
        sampler = Sampler(settings, context, fleet, runner)
        runner.run(sampler.join())
        sampler.one_by_one(_WARM_UP)
        sampler.in_bundles(_WARM_UP)
        yield sampler
    finally:
        runner.run(fleet.close())


class Sampler:
    """Samples the completions of steps from the fleet, as the training loop does, with `runner`."""

    def __init__(
        self, settings: TrainerSettings, context: LocalContext, fleet: Fleet, runner: asyncio.Runner
    ) -> None:
        run_config = settings.run_config
        model = materialise_model(
            run_config.model,
            hub=run_config.hub,
            volumes_dir=settings.volumes_dir,
            into=settings.cache_dir / "model",
        )
        self._run_config = run_config
        self._context = context
        self._fleet = fleet
        self._runner = runner
        self._policy = Policy(
            load_policy(model.folder, dtype=MASTER_DTYPE),
            temperature=run_config.sampling.temperature,
            dtype=run_config.model.dtype,
        )
        self._tokenizer = load_tokenizer(model.folder)
        prompts = load_prompts(run_config, volumes_dir=settings.volumes_dir, needs_answers=False)
        self._prompts = prompts[: run_config.algorithm.prompts_per_step]
        self._same = SameTokens()

    async def join(self) -> None:
        """Send the weights to every engine of the job.

        Raises BenchError when an engine ends or does not take them.
        """
        version, probe = PolicyVersion(1, 0), self._probe()
        sync = asyncio.ensure_future(
            self._fleet.sync(PolicyWeights(self._policy), version=version, probe=probe)
        )
        try:
            while not sync.done():
                require_all_alive(self._context)
                await asyncio.wait({sync}, timeout=_LOOK_SECONDS)
        finally:
            sync.cancel()
        report, num_engines = sync.result(), self._run_config.topology.rollout_replicas
        if len(report.synced) != num_engines:
            raise BenchError(
                f"{len(report.synced)} of {num_engines} engines took the weights: {dict(report.failed)}"
            )

    def _probe(self) -> Probe:
        """As `make_probe` makes it of a training strategy, which takes ranks that have met."""
        vocab_size = int(self._policy.model.config.vocab_size)
        token_ids = probe_tokens(
            self._tokenizer,
            dtype=self._run_config.model.dtype,
            vocab_size=vocab_size,
            max_model_len=self._run_config.engine.max_model_len,
        )
        logprobs = self._policy.logprobs_at_one(torch.tensor([token_ids]))
        tolerance = PROBE_TOLERANCES[self._run_config.model.dtype]
        return Probe(token_ids=token_ids, logprobs=tuple(logprobs[0].tolist()), tolerance=tolerance)

    def one_by_one(self, number: int) -> Amounts:
        """Ask for every sample in a call of its own: in reverse order no seed follows the one before."""
        return self._measure(number, is_backwards=True)

    def in_bundles(self, number: int) -> Amounts:
        """Ask for the samples as the training loop does."""
        return self._measure(number, is_backwards=False)

    def _measure(self, number: int, *, is_backwards: bool) -> Amounts:
        """What one step took, as the mean of several steps; `number` decides which steps, for both ways."""
        turned = slice(None, None, -1 if is_backwards else 1)
        steps = range(number * STEPS_PER_RUN, (number + 1) * STEPS_PER_RUN)
        work = {step: self._requests(step)[turned] for step in steps}
        engines_began, trainer_began, began = seconds_of_descendants(), time.process_time(), time.monotonic()
        drawn = {step: self._runner.run(self._fleet.generate(requests)) for step, requests in work.items()}
        seconds, trainer = time.monotonic() - began, time.process_time() - trainer_began
        engines = seconds_of_descendants() - engines_began
        # the fleet would continue without a lost engine
        require_all_alive(self._context)
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
        groups = make_groups(self._prompts, step=step, run_config=self._run_config, tokenizer=self._tokenizer)
        return [request for group in groups for request in group.requests]

    def _num_calls(self, requests: Sequence[GenerateRequest]) -> int:
        """The number of calls in which the fleet sends the requests."""
        return len(bundle(requests, num_engines=self._run_config.topology.rollout_replicas))
