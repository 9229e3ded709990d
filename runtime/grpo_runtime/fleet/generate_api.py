"""Requests to and answers from vLLM's /inference/v1/generate.

vLLM has one form for the logprobs of sampled tokens: an object for each token, with the sampled one once more
in its `top_logprobs`, some 110 bytes. Of each only the logprob is kept, while the answer is decoded.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.fleet.bundle import Bundle
from grpo_runtime.fleet.errors import BadAnswerError
from grpo_runtime.rollout.interface import Probe, Rollout, VersionSpan
from grpo_runtime.rollout.sampling import PROBE_PARAMETERS, probe_error, sampling_parameters

_LONGEST_TOKEN_BYTES = 1024
"""Of one token in an answer; vLLM needs some 110, and more where the text of a token is long."""
_MAX_REST_BYTES = 1 << 20
"""Of everything else in an answer."""
_LARGEST_LOGPROB = 1e-3
"""A logprob is at most 0, but for rounding."""


@dataclass(frozen=True)
class AnswerLimits:
    """What no answer of an engine that is well goes beyond. `vocab_size` is None where it is not known."""

    max_tokens: int
    """Of one completion."""
    vocab_size: int | None = None

    def max_bytes(self, *, num_samples: int) -> int:
        """Of an answer with so many completions."""
        return _MAX_REST_BYTES + num_samples * self.max_tokens * _LONGEST_TOKEN_BYTES


class _LogProbs(BaseModel):
    content: list[Annotated[float, Field(le=_LARGEST_LOGPROB, allow_inf_nan=False)]]


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Choice(BaseModel):
    index: int
    token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
    finish_reason: str
    logprobs: _LogProbs
    weight_versions: Annotated[list[_Span], Field(min_length=1)]


class _ProbeAnswer(BaseModel):
    prompt_logprobs: list[dict[str, float] | None]


def sampling_body(bundle: Bundle, *, sampling: SamplingSpec) -> dict[str, Any]:
    """The request for a bundle. Of `n` samples with a seed, vLLM draws number i with seed + i."""
    parameters = sampling_parameters(sampling, seed=bundle.seed, max_tokens=bundle.max_tokens)
    return {
        "token_ids": list(bundle.prompt_ids),
        "sampling_params": parameters | {"n": bundle.num_samples},
    }


async def read_rollouts(answer: bytes, *, bundle: Bundle, engine: str, limits: AnswerLimits) -> list[Rollout]:
    """What `parse_rollouts` returns, in another thread: the event loop goes on meanwhile."""
    return await asyncio.to_thread(parse_rollouts, answer, bundle=bundle, engine=engine, limits=limits)


def parse_rollouts(answer: bytes, *, bundle: Bundle, engine: str, limits: AnswerLimits) -> list[Rollout]:
    """The completions in an answer, in order. Raises BadAnswerError unless all are whole and versioned, and
    within what an engine can sample."""
    found = _decoded(answer, engine=engine).get("choices")
    try:
        choices = [_Choice.model_validate(choice) for choice in (found if isinstance(found, list) else ())]
    except ValidationError as error:
        raise BadAnswerError(
            f"engine {engine} sent an answer that is not understood: {_in_short(error)}"
        ) from error
    choices.sort(key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(bundle.num_samples)):
        raise BadAnswerError(f"engine {engine} sent {len(choices)} of {bundle.num_samples} completions")
    for choice in choices:
        _require_within(limits, choice, engine=engine)
    return [_rollout(choice, prompt_ids=bundle.prompt_ids, engine=engine) for choice in choices]


def _require_within(limits: AnswerLimits, choice: _Choice, *, engine: str) -> None:
    if len(choice.token_ids) > limits.max_tokens:
        raise BadAnswerError(
            f"engine {engine} sent {len(choice.token_ids)} tokens where at most {limits.max_tokens} were "
            "asked for"
        )
    highest = max(choice.token_ids)
    if limits.vocab_size is not None and highest >= limits.vocab_size:
        raise BadAnswerError(f"engine {engine} sent token {highest} of a vocabulary of {limits.vocab_size}")


def _in_short(error: ValidationError) -> str:
    """The first problem: there may be one for each token."""
    first, *others = error.errors(include_url=False)
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" + (f", and {len(others)} more" if others else "")


def _decoded(answer: bytes, *, engine: str) -> dict[str, Any]:
    """Raises BadAnswerError when it is no JSON object."""
    try:
        found = json.loads(answer, object_hook=_logprob_alone)
    except (ValueError, RecursionError) as error:
        raise BadAnswerError(f"engine {engine} sent an answer that is not JSON") from error
    if not isinstance(found, dict):
        raise BadAnswerError(f"engine {engine} sent an answer that is not a JSON object")
    return found


def _logprob_alone(fields: dict[str, Any]) -> Any:
    """The logprob of a token's object, and every other object as it is.

    That this is Python has a use: without it one answer is decoded in one call of C, which no other thread,
    such as that of the event loop, can interrupt.
    """
    return fields.get("logprob", fields)


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
        rollout_logprobs=tuple(choice.logprobs.content),
        versions=versions,
        is_terminated=choice.finish_reason == "stop",
        engine=engine,
    )


def probe_body(probe: Probe) -> dict[str, Any]:
    """The request for the logprobs of the probe."""
    return {"token_ids": list(probe.token_ids), "sampling_params": PROBE_PARAMETERS}


def answered_probe_error(answer: bytes, *, probe: Probe, engine: str) -> float:
    """The largest difference (nats) between the engine's logprobs and the probe's; raises BadAnswerError."""
    try:
        entries = _ProbeAnswer.model_validate(_decoded(answer, engine=engine)).prompt_logprobs[1:]
    except ValidationError as error:
        raise BadAnswerError(f"engine {engine} sent no logprobs for the probe: {error}") from error
    tokens = probe.token_ids[1:]
    if len(entries) != len(tokens):
        raise BadAnswerError(f"engine {engine} sent {len(entries)} logprobs for a probe of {len(tokens)}")
    found = []
    for entry, token in zip(entries, tokens, strict=True):
        if entry is None or str(token) not in entry:
            raise BadAnswerError(f"engine {engine} left token {token} of the probe out")
        found.append(entry[str(token)])
    return probe_error(found, probe=probe)
