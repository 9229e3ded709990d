"""What the fleet asks an engine to sample, and what it takes for an answer."""

import math
from dataclasses import dataclass, replace

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.bundle import Bundle
from grpo_runtime.engines.fleet.errors import BadAnswerError
from grpo_runtime.rollouts.frames import Frame, read_frames
from grpo_runtime.rollouts.interface import Probe, Rollout
from grpo_runtime.rollouts.sampling import probe_error, sampling_parameters
from grpo_runtime.rollouts.wire import EngineCall, read_completion, read_logprobs

_TOKEN_BYTES = 64
"""Of one token in an answer, at most: 8, and more where every token was sampled with other weights."""
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
        return _MAX_REST_BYTES + num_samples * self.max_tokens * _TOKEN_BYTES


def sampling_call(bundle: Bundle, *, sampling: SamplingSpec) -> EngineCall:
    """The call for a bundle."""
    parameters = sampling_parameters(sampling, seed=bundle.seed, max_tokens=bundle.max_tokens)
    return EngineCall(bundle.prompt_ids, parameters | {"n": bundle.num_samples})


def read_rollouts(answer: bytes, *, bundle: Bundle, engine: str, limits: AnswerLimits) -> list[Rollout]:
    """The completions in an answer, in order. Raises BadAnswerError unless all are whole and versioned, and
    within what an engine can sample."""
    frames = _frames(answer, engine=engine)
    if len(frames) != bundle.num_samples:
        raise BadAnswerError(f"engine {engine} sent {len(frames)} of {bundle.num_samples} completions")
    rollouts = []
    for frame in frames:
        try:
            rollout = read_completion(frame, prompt_ids=bundle.prompt_ids)
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswerError(
                f"engine {engine} sent a completion that is not understood: {type(error).__name__}: {error}"
            ) from error
        _require_whole(rollout, engine=engine)
        _require_within(limits, rollout, engine=engine)
        rollouts.append(replace(rollout, engine=engine))
    return rollouts


def _require_whole(rollout: Rollout, *, engine: str) -> None:
    num_tokens, spans = len(rollout.completion_ids), rollout.versions
    # each span begins where the one before ends
    starts, ends = [span.start for span in spans], [span.end for span in spans]
    is_whole = num_tokens and spans and len(rollout.rollout_logprobs) == num_tokens
    if not is_whole or [*starts, num_tokens] != [0, *ends] or rollout.loss_mask is not None:
        raise BadAnswerError(f"engine {engine} sent {num_tokens} tokens with parts missing")


def _require_within(limits: AnswerLimits, rollout: Rollout, *, engine: str) -> None:
    token_ids, logprobs = rollout.completion_ids, rollout.rollout_logprobs
    if len(token_ids) > limits.max_tokens:
        raise BadAnswerError(
            f"engine {engine} sent {len(token_ids)} tokens where at most {limits.max_tokens} were asked for"
        )
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0:
        raise BadAnswerError(f"engine {engine} sent token {lowest}")
    if limits.vocab_size is not None and highest >= limits.vocab_size:
        raise BadAnswerError(f"engine {engine} sent token {highest} of a vocabulary of {limits.vocab_size}")
    for logprob in logprobs:
        if not -math.inf < logprob <= _LARGEST_LOGPROB:
            raise BadAnswerError(f"engine {engine} sent a logprob of {logprob:g}")


def probe_call(probe: Probe, *, core: int | None) -> EngineCall:
    """The call for the logprobs of the probe by one of an engine's cores."""
    return EngineCall(probe.token_ids, {}, core=core)


def answered_probe_error(answer: bytes, *, probe: Probe, engine: str) -> float:
    """The mean difference (nats a token) between the engine's logprobs and the probe's. Raises
    BadAnswerError."""
    frames = _frames(answer, engine=engine)
    try:
        logprobs = read_logprobs(frames[0])
    except LookupError as error:
        raise BadAnswerError(f"engine {engine} sent no logprobs for the probe") from error
    if len(logprobs) != len(probe.logprobs):
        raise BadAnswerError(
            f"engine {engine} sent {len(logprobs)} logprobs for a probe of {len(probe.logprobs)}"
        )
    return probe_error(logprobs, probe=probe)


def _frames(answer: bytes, *, engine: str) -> list[Frame]:
    try:
        return read_frames(answer)
    except ValueError as error:
        raise BadAnswerError(f"engine {engine} sent an answer that is not understood: {error}") from error
