"""What engines are asked for in either mode: vLLM's sampling parameters, and how exact a probe's logprobs
are."""

import json
import math
import zlib
from collections.abc import Iterable
from typing import Any

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.rollouts.interface import Probe

PROBE_PARAMETERS = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
"""vLLM's parameters for the logprobs of a fixed sequence: they come as the logprobs of a prompt."""


def sampling_parameters(
    sampling: SamplingSpec, *, seed: int, max_tokens: int | None = None
) -> dict[str, Any]:
    """vLLM's parameters for one completion, as JSON; `max_tokens` where it is shorter than others.

    Everything that shapes the distribution is written out: the model's generation_config may say otherwise.
    """
    parameters: dict[str, Any] = {
        "seed": seed,
        "temperature": sampling.temperature,
        "max_tokens": max_tokens or sampling.max_tokens,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": sampling.repetition_penalty or 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        # stop strings are looked for in the text, which nothing else needs
        "detokenize": bool(sampling.stop),
    }
    if sampling.stop:
        parameters["stop"] = list(sampling.stop)
    if sampling.regex is not None:
        parameters["structured_outputs"] = {"regex": sampling.regex}
    return parameters


def sampling_checksum(sampling: SamplingSpec) -> int:
    """CRC-32 of what shapes a completion, but for its prompt and its seed."""
    parameters = sampling_parameters(sampling, seed=0)
    if sampling.rollout_function is not None:
        # with a timeout or another one a completion is the same
        identity = sampling.rollout_function.model_copy(update={"timeout_seconds": None})
        parameters["rollout_function"] = identity.model_dump(mode="json")
    return zlib.crc32(json.dumps(parameters, sort_keys=True).encode())


def probe_error(found: Iterable[float], *, probe: Probe) -> float:
    """The mean difference (nats a token) between the logprobs found and the probe's, infinite for NaN.

    Raises ValueError when their numbers differ.
    """
    differences = [abs(engine - trainer) for engine, trainer in zip(found, probe.logprobs, strict=True)]
    mean = math.fsum(differences) / max(1, len(differences))
    # NaN compares as false with everything and would pass any tolerance
    return math.inf if math.isnan(mean) else mean
