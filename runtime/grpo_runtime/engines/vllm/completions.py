"""Between our types and vLLM's: sampling parameters there, completions and logprobs back. For an engine in a
training rank and for one behind the guard."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts.interface import EngineError, Rollout, VersionSpan


def vllm_parameters(given: Mapping[str, Any]) -> SamplingParams:
    """What vLLM is asked for. Raises ValueError or VLLMClientError for what it refuses."""
    if unknown := given.keys() - set(SamplingParams.__struct_fields__):
        raise ValueError(f"vLLM knows no sampling parameter {', '.join(sorted(unknown))}")
    always = {
        "output_kind": RequestOutputKind.FINAL_ONLY.value,
        # in lists, and not in a dictionary and an object for each token
        "flat_logprobs": True,
        # vLLM copies parameters for each request, which in depth takes longer than all else it does with one
        # before it computes
        "skip_clone": True,
    }
    # the types are looked at here: the core of an engine ends at a value of another one
    return msgspec.convert({**given, **always}, SamplingParams, str_keys=True)


def rollout_of(output: Any, *, prompt_ids: Sequence[int], engine: str) -> Rollout:
    """What vLLM sampled for a prompt, with flat logprobs; of a completion that it aborted, what there is.
    Raises EngineError when anything else ended it but an end-of-sequence token or the limit, when vLLM does
    not say which weights sampled it, when a logprob is not finite, and as `flat_logprobs`."""
    if output.finish_reason not in ("stop", "length", "abort"):
        raise EngineError(f"vLLM ended a completion by {output.finish_reason}")
    try:
        versions = tuple(
            VersionSpan(PolicyVersion.parse(span.version), start=span.start, end=span.end)
            for span in output.weight_versions or ()
        )
    except ValueError as error:
        raise EngineError(f"vLLM sampled with weights that nobody gave it: {error}") from error
    if not versions and output.token_ids:
        raise EngineError("vLLM does not say which weights sampled a completion")
    logprobs = flat_logprobs(output.logprobs, of=output.token_ids) if output.token_ids else []
    if not all(map(math.isfinite, logprobs)):
        raise EngineError("vLLM sampled a token whose logprob is not finite")
    return Rollout(
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(output.token_ids),
        rollout_logprobs=tuple(logprobs),
        versions=versions,
        is_terminated=output.finish_reason == "stop",
        engine=engine,
        is_aborted=output.finish_reason == "abort",
    )


def flat_logprobs(found: Any, *, of: Sequence[int]) -> list[float]:
    """The logprobs (nats) in vLLM's lists, one for each token. Raises EngineError when they are of other
    tokens."""
    if found.token_ids != list(of):
        raise EngineError(f"vLLM gave {len(found.token_ids)} logprobs, not those of the {len(of)} tokens")
    return list(found.logprobs)
