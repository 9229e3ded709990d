"""Requests to and answers from vLLM's /inference/v1/generate."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.fleet.bundle import Bundle
from grpo_runtime.fleet.errors import BadAnswerError
from grpo_runtime.rollout.interface import Probe, Rollout, VersionSpan
from grpo_runtime.rollout.sampling import PROBE_PARAMETERS, probe_error, sampling_parameters


class _LogProb(BaseModel):
    logprob: float


class _LogProbs(BaseModel):
    content: list[_LogProb]


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Choice(BaseModel):
    index: int
    token_ids: Annotated[list[int], Field(min_length=1)]
    finish_reason: str
    logprobs: _LogProbs
    weight_versions: Annotated[list[_Span], Field(min_length=1)]


class _Answer(BaseModel):
    choices: list[_Choice]


class _ProbeAnswer(BaseModel):
    prompt_logprobs: list[dict[str, _LogProb] | None]


def sampling_body(bundle: Bundle, *, temperature: float, max_tokens: int) -> dict[str, Any]:
    """The request for a bundle. Of `n` samples with a seed, vLLM draws number i with seed + i."""
    parameters = sampling_parameters(seed=bundle.seed, temperature=temperature, max_tokens=max_tokens)
    return {
        "token_ids": list(bundle.prompt_ids),
        "sampling_params": parameters | {"n": bundle.num_samples},
    }


def parse_rollouts(answer: Mapping[str, Any], *, bundle: Bundle, engine: str) -> list[Rollout]:
    """The completions in an answer, in order. Raises BadAnswerError unless all are whole and versioned."""
    try:
        choices = sorted(_Answer.model_validate(answer).choices, key=lambda choice: choice.index)
    except ValidationError as error:
        raise BadAnswerError(f"engine {engine} sent an answer that is not understood: {error}") from error
    if [choice.index for choice in choices] != list(range(bundle.num_samples)):
        raise BadAnswerError(f"engine {engine} sent {len(choices)} of {bundle.num_samples} completions")
    return [_rollout(choice, prompt_ids=bundle.prompt_ids, engine=engine) for choice in choices]


def _rollout(choice: _Choice, *, prompt_ids: tuple[int, ...], engine: str) -> Rollout:
    try:
        versions = tuple(
            VersionSpan(version=PolicyVersion.parse(span.version), start=span.start, end=span.end)
            for span in choice.weight_versions
        )
    except ValueError as error:
        raise BadAnswerError(f"engine {engine} sent a version that is not understood: {error}") from error
    num_tokens = len(choice.token_ids)
    if choice.finish_reason not in ("stop", "length"):
        raise BadAnswerError(f"engine {engine} ended a completion by {choice.finish_reason}")
    starts, ends = [span.start for span in versions], [span.end for span in versions]
    if len(choice.logprobs.content) != num_tokens or [*starts, num_tokens] != [0, *ends]:
        raise BadAnswerError(f"engine {engine} sent {num_tokens} tokens with parts missing")
    return Rollout(
        prompt_ids=prompt_ids,
        completion_ids=tuple(choice.token_ids),
        rollout_logprobs=tuple(entry.logprob for entry in choice.logprobs.content),
        versions=versions,
        is_terminated=choice.finish_reason == "stop",
        engine=engine,
    )


def probe_body(probe: Probe) -> dict[str, Any]:
    """The request for the logprobs of the probe."""
    return {"token_ids": list(probe.token_ids), "sampling_params": PROBE_PARAMETERS}


def answered_probe_error(answer: Mapping[str, Any], *, probe: Probe, engine: str) -> float:
    """The largest difference (nats) between the engine's logprobs and the probe's; raises BadAnswerError."""
    try:
        entries = _ProbeAnswer.model_validate(answer).prompt_logprobs[1:]
    except ValidationError as error:
        raise BadAnswerError(f"engine {engine} sent no logprobs for the probe: {error}") from error
    tokens = probe.token_ids[1:]
    if len(entries) != len(tokens):
        raise BadAnswerError(f"engine {engine} sent {len(entries)} logprobs for a probe of {len(tokens)}")
    found = []
    for entry, token in zip(entries, tokens, strict=True):
        if entry is None or str(token) not in entry:
            raise BadAnswerError(f"engine {engine} left token {token} of the probe out")
        found.append(entry[str(token)].logprob)
    return probe_error(found, probe=probe)
