"""What engines are asked for in either mode: vLLM's sampling parameters, how exact a probe's logprobs are,
and vLLM's sampling masks.
"""

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from grpo_api.v1alpha1.spec import EnvironmentSpec, SamplingSpec
from grpo_runtime.rollouts.interface import Probe

PROBE_PARAMETERS = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
"""vLLM's parameters for the logprobs of a fixed sequence: they come as the logprobs of a prompt."""
Mask = tuple[int, ...]
_MASKS = TypeAdapter(tuple[tuple[Annotated[int, Field(ge=0, strict=True)], ...], ...])


def sampling_parameters(
    sampling: SamplingSpec,
    *,
    seed: int,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    own: str | None = None,
) -> dict[str, Any]:
    """vLLM's parameters for one completion, as JSON; `max_tokens` where it is shorter than others, `stop`
    where further texts end it, `own` as `own_parameters` of its request.

    Everything that shapes the distribution is written out: the model's generation_config may say otherwise.
    """
    of_job = sampling if own is None else sampling.model_copy(update={"stop": None, "regex": None})
    stops = [*(of_job.stop or ()), *stop]
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
        "detokenize": bool(stops),
    }
    if stops:
        parameters["stop"] = stops
    if of_job.regex is not None:
        parameters["structured_outputs"] = {"regex": of_job.regex}
    return parameters if own is None else parameters | json.loads(own)


def sampling_checksum(sampling: SamplingSpec, *, environments: Sequence[EnvironmentSpec] = ()) -> int:
    """CRC-32 of what shapes a completion, but for its prompt and its seed: of code, where it is."""
    parameters = sampling_parameters(sampling, seed=0)
    if sampling.rollout_function is not None:
        # with a timeout or another one a completion is the same
        identity = sampling.rollout_function.model_copy(update={"timeout_seconds": None})
        parameters["rollout_function"] = identity.model_dump(mode="json")
    if environments:
        parameters["environments"] = [
            each.model_dump(mode="json", exclude={"workers", "limits"}) for each in environments
        ]
    return zlib.crc32(json.dumps(parameters, sort_keys=True).encode())


def probe_error(found: Iterable[float], *, probe: Probe) -> float:
    """The mean difference (nats a token) between the logprobs found and the probe's, infinite for NaN.

    Raises ValueError when their numbers differ.
    """
    differences = [abs(engine - trainer) for engine, trainer in zip(found, probe.logprobs, strict=True)]
    mean = math.fsum(differences) / max(1, len(differences))
    # NaN compares as false with everything and would pass any tolerance
    return math.inf if math.isnan(mean) else mean


def read_sampling_mask(found: object, *, completion_ids: Sequence[int]) -> tuple[Mask, ...]:
    """The token ids that were left to draw each token of a completion from, as vLLM gives them with
    `--return-sampling-mask` as `sampling_mask.token_ids` of an output. No job can ask for them yet, and
    docs/decisions/samples.md says why.

    Raises ValueError when they are no masks, when there are more or fewer than tokens, when one has a token
    twice, and when a token is not in its own mask: the engine cannot have drawn it.
    """
    if found is None:
        raise ValueError("the engine gave no sampling mask: it runs without --return-sampling-mask")
    try:
        masks = _MASKS.validate_python(found)
    except ValidationError as error:
        raise ValueError(f"the sampling mask is not a list of token ids for each token: {error}") from error
    if len(masks) != len(completion_ids):
        raise ValueError(f"there are sampling masks for {len(masks)} of {len(completion_ids)} tokens")
    for place, (token, mask) in enumerate(zip(completion_ids, masks, strict=True)):
        if len(set(mask)) != len(mask):
            raise ValueError(f"the sampling mask of token {place} has a token twice")
        if token not in mask:
            raise ValueError(f"token {place} ({token}) is not in its own sampling mask")
    return masks
