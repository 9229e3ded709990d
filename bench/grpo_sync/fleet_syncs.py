"""The syncs of a fleet of vLLM engines, as a trainer asks for them."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from grpo_api.contract.versions import PolicyVersion
from grpo_bench.errors import BenchError
from grpo_bench.example_job import require_all_alive
from grpo_runtime.engines.fleet.fleet import Fleet, open_fleet
from grpo_runtime.local.context import LocalContext
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.rollouts.interface import Probe, SyncReport
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy, PolicyWeights
from grpo_runtime.trainer.weight_checks import PROBE_TOLERANCES, probe_tokens
from grpo_runtime.weight_sync.interface import Reach
from grpo_runtime.weight_sync.registry import find_backend
from grpo_sync.amounts import BROADCAST, COPY, EngineCase, floor_of
from grpo_sync.floors import Floors
from grpo_sync.progress import say
from grpo_sync.receivers import started_receivers

NUM_ROUNDS = 20
_LOOK_SECONDS = 0.5


async def measure(
    settings: TrainerSettings, context: LocalContext, *, model: Path, size_mb: int
) -> EngineCase:
    """A sync that connects and warms up, and those that count."""
    disable_progress_bar()
    torch.set_num_threads(1)
    number = settings.run_config.topology.rollout_replicas
    backend = find_backend(settings.run_config.weight_sync_backend)
    syncs = FleetSyncs(settings, context, model)
    try:
        async with started_receivers(number) as receivers:
            floors = Floors(receivers)
            first, num_bytes = await syncs.run(0)
            floors.make_room(num_bytes)
            await asyncio.gather(
                *(receiver.call("memory", num_bytes=num_bytes, num_tensors=0) for receiver in receivers)
            )
            await _floors(floors, number)
            rounds = []
            title = f"{size_mb} MB in float32 to {number} vLLM engines: {backend.name}"
            say(f"{title}, {NUM_ROUNDS} syncs after the first one")
            for step in range(1, NUM_ROUNDS + 1):
                floor = await _floors(floors, number)
                amounts, _ = await syncs.run(step)
                rounds.append({**amounts, **floor})
                if step % 10 == 0:
                    say(f"  sync {step} of {NUM_ROUNDS}: {amounts['wall']:.2f} s")
    finally:
        await syncs.close()
    return EngineCase(
        size_mb=size_mb,
        num_engines=number,
        backend=backend.name,
        num_bytes=num_bytes,
        floor=floor_of(number, is_network=backend.reach is Reach.NETWORK),
        first=first,
        rounds=rounds,
    )


class FleetSyncs:
    """A fleet, and a policy whose weights it is given."""

    def __init__(self, settings: TrainerSettings, context: LocalContext, model: Path) -> None:
        run_config = settings.run_config
        self._attempt = settings.attempt
        self._num_engines = run_config.topology.rollout_replicas
        self._context = context
        self._policy = Policy(
            load_policy(model, dtype=MASTER_DTYPE),
            temperature=run_config.sampling.temperature,
            dtype=run_config.model.dtype,
        )
        token_ids = probe_tokens(
            load_tokenizer(model),
            dtype=run_config.model.dtype,
            vocab_size=int(self._policy.model.config.vocab_size),
            max_model_len=run_config.engine.max_model_len,
        )
        self._probe = Probe(
            token_ids=token_ids,
            logprobs=tuple(self._policy.logprobs_at_one(torch.tensor([token_ids]))[0].tolist()),
            tolerance=PROBE_TOLERANCES[run_config.model.dtype],
        )
        self._fleet: Fleet = open_fleet(settings)

    async def run(self, step: int) -> tuple[Mapping[str, float], int]:
        """Give every engine the weights: seconds of each phase, and the bytes that went to each.

        Raises BenchError when an engine does not take them.
        """
        began = time.monotonic()
        sync = asyncio.ensure_future(
            self._fleet.sync(
                PolicyWeights(self._policy),
                version=PolicyVersion(self._attempt, step),
                probe=self._probe,
            )
        )
        try:
            while not sync.done():
                require_all_alive(self._context)
                await asyncio.wait({sync}, timeout=_LOOK_SECONDS)
        finally:
            sync.cancel()
        report = sync.result()
        return {**self._phases(report), "wall": time.monotonic() - began}, report.num_bytes

    async def close(self) -> None:
        """Let go of the engines."""
        await self._fleet.close()

    def _phases(self, report: SyncReport) -> Mapping[str, float]:
        if len(report.synced) != self._num_engines:
            raise BenchError(
                f"{len(report.synced)} of {self._num_engines} engines took the weights: {dict(report.failed)}"
            )
        return report.phase_seconds


async def _floors(floors: Floors, number: int) -> Mapping[str, float]:
    return {COPY: await floors.copy_seconds(), BROADCAST: await floors.broadcast_seconds(number)}
