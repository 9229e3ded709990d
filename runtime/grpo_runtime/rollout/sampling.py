"""What engines are asked for in either mode: vLLM's sampling parameters, and how exact a probe's logprobs
are."""

import math
from collections.abc import Iterable
from typing import Any

from grpo_runtime.rollout.interface import Probe

PROBE_PARAMETERS = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
"""vLLM's parameters for the logprobs of a fixed sequence: they come as the logprobs of a prompt."""


def sampling_parameters(*, seed: int, temperature: float, max_tokens: int) -> dict[str, Any]:
    """vLLM's parameters for one completion.

    Everything that shapes the distribution is written out: the model's generation_config may say otherwise.
    """
    return {
        "seed": seed,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
        "detokenize": False,
    }


def probe_error(found: Iterable[float], *, probe: Probe) -> float:
    """The mean difference (nats a token) between the logprobs found and the probe's, infinite for NaN.

    Raises ValueError when their numbers differ.
    """
    differences = [abs(engine - trainer) for engine, trainer in zip(found, probe.logprobs, strict=True)]
    mean = math.fsum(differences) / max(1, len(differences))
    # NaN compares as false with everything and would pass any tolerance
    return math.inf if math.isnan(mean) else mean
