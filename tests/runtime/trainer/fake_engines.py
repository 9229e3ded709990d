"""Engines that sample with the Hugging Face model in this process: exact, deterministic, no vLLM."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from dense_logprobs import dense_logprobs

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.source import materialise_model
from grpo_runtime.rollouts.interface import (
    FailedSyncs,
    GenerateRequest,
    Generation,
    OnFinished,
    OnRead,
    Probe,
    Rollout,
    SyncReport,
    VersionSpan,
)
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.weight_sync.source import WeightSource


class FakeEngines:
    """One engine of its own weights, which change only in `sync`. The seed alone decides the tokens."""

    is_concurrent = False

    def __init__(self, settings: TrainerSettings, *, name: str = "fake-engine") -> None:
        run = settings.run_config
        folder = materialise_model(
            run.model, hub=run.hub, volumes_dir=settings.volumes_dir, into=settings.cache_dir / name
        ).folder
        self._model = load_policy(folder, dtype=run.model.dtype.value).eval()
        self._eos = load_tokenizer(folder).eos_token_id
        self._temperature = run.sampling.temperature
        self._max_tokens = run.sampling.max_tokens
        self._version: PolicyVersion | None = None

    def counts(self) -> EngineCounts:
        has_weights = int(self._version is not None)
        return EngineCounts(desired=1, known=1, current=has_weights)

    def generation(self) -> Generation | None:
        return None

    def failed_syncs(self) -> Mapping[str, FailedSyncs]:
        return {}

    def take_idle_seconds(self) -> Mapping[str, float]:
        return {}

    def take_recomputed(self) -> None:
        return None

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        parameters = dict(self._model.named_parameters())
        num_bytes = 0
        with torch.no_grad():
            for name, tensor in weights.tensors():
                parameters[name].copy_(tensor)
                num_bytes += tensor.nbytes
            error = 0.0 if probe is None else self._probe_error(probe)
        assert probe is None or error <= probe.tolerance
        self._version = version
        return SyncReport(
            version=version,
            synced=("fake",),
            failed={},
            num_bytes=num_bytes,
            phase_seconds={"update": 0.0},
            max_probe_error=error,
        )

    async def rest(self) -> None:
        """It has memory of its own."""

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        await asyncio.sleep(0)
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            by_length[len(request.prompt_ids)].append(index)
        rollouts: dict[int, Rollout] = {}
        for indexes in by_length.values():
            sampled = self._sample([requests[index] for index in indexes])
            for index, rollout in zip(indexes, sampled, strict=True):
                rollouts[index] = rollout
                if on_finished is not None:
                    on_finished(index, rollout)
        return [rollouts[index] for index in range(len(requests))]

    async def close(self) -> None:
        self._version = None

    @torch.no_grad()
    def _sample(self, requests: Sequence[GenerateRequest]) -> list[Rollout]:
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        tokens = torch.tensor([request.prompt_ids for request in requests])
        logprobs = []
        for _ in range(self._max_tokens):
            logits = self._model(input_ids=tokens, use_cache=False).logits[:, -1:]
            probabilities = (logits[:, 0] / self._temperature).softmax(-1)
            chosen = torch.stack(
                [
                    torch.multinomial(row, 1, generator=generator)
                    for row, generator in zip(probabilities, generators, strict=True)
                ]
            )
            logprobs.append(dense_logprobs(logits, token_ids=chosen, temperature=self._temperature)[0])
            tokens = torch.cat([tokens, chosen], dim=1)
        columns = torch.cat(logprobs, dim=1).tolist()
        return [
            self._rollout(request, row, column)
            for request, row, column in zip(requests, tokens.tolist(), columns, strict=True)
        ]

    def _rollout(self, request: GenerateRequest, tokens: list[int], logprobs: list[float]) -> Rollout:
        assert self._version is not None, "generate before the first sync"
        completion = tokens[len(request.prompt_ids) :][: request.max_tokens]
        is_terminated = self._eos in completion
        if is_terminated:
            completion = completion[: completion.index(self._eos) + 1]
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=tuple(completion),
            rollout_logprobs=tuple(logprobs[: len(completion)]),
            versions=(VersionSpan(version=self._version, start=0, end=len(completion)),),
            is_terminated=is_terminated,
            engine="fake",
        )

    def _probe_error(self, probe: Probe) -> float:
        ids = torch.tensor([probe.token_ids])
        logits = self._model(input_ids=ids, use_cache=False).logits[:, :-1]
        found, _ = dense_logprobs(logits, token_ids=ids[:, 1:])
        return float((found - torch.tensor([probe.logprobs])).abs().max())
