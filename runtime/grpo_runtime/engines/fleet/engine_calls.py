"""What the fleet asks of an engine in one call, and what it takes for an answer.

A call for completions carries a bundle of requests: the same prompt, with consecutive seeds. It costs the
engine's server and the trainer about 2 ms, as much as sampling a short completion.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.rollouts.frames import Frame, read_frames
from grpo_runtime.rollouts.interface import GenerateRequest, Probe, Rollout, Segment
from grpo_runtime.rollouts.sampling import probe_error, sampling_parameters
from grpo_runtime.rollouts.wire import EngineCall, read_completion, read_logprobs

MAX_SAMPLES = 16
"""Most samples of one call; larger calls save little more."""
MIN_CALLS_PER_ENGINE = 4
"""Calls are what is shared out: with few of them, one engine would end long after the others."""
_TOKEN_BYTES = 64
"""Most bytes of one token in an answer: 8, and more where every token was sampled with other weights."""
_MAX_REST_BYTES = 1 << 20
"""Most bytes of everything else in an answer."""
_LARGEST_LOGPROB = 1e-3
"""A logprob is at most 0, but for rounding."""


class BadAnswerError(Exception):
    """An engine answered something that is not a whole, versioned completion of weights that may sample."""


@dataclass(frozen=True)
class Bundle:
    """`num_samples` completions of one prompt, number i drawn with `seed` + i, or what is missing of one of
    which there is `so_far`. `group_prompt` is the prompt of their group, with which theirs begins, and
    `session` that of GenerateRequest."""

    prompt_ids: tuple[int, ...]
    seed: int
    num_samples: int
    is_evaluation: bool = False
    max_tokens: int | None = None
    num_group_tokens: int | None = None
    session: int | None = None
    stop: tuple[str, ...] = ()
    own_parameters: str | None = None
    so_far: Rollout | None = None

    @classmethod
    def of(cls, request: GenerateRequest) -> "Bundle":
        """One of a single sample."""
        return cls(
            request.prompt_ids,
            request.seed,
            1,
            request.is_evaluation,
            request.max_tokens,
            request.num_group_tokens,
            request.session,
            request.stop,
            request.own_parameters,
            request.so_far,
        )

    @property
    def group_prompt(self) -> tuple[int, ...]:
        return self.prompt_ids[: self.num_group_tokens]

    def num_tokens(self, *, max_tokens: int) -> int:
        """Most tokens that its samples can come to, each with its prompt; `max_tokens` is the limit of a
        completion that has none of its own."""
        return self.num_samples * (len(self.prompt_ids) + (self.max_tokens or max_tokens))

    @property
    def ids_so_far(self) -> tuple[int, ...]:
        """The tokens of the completion that there are."""
        return () if self.so_far is None else self.so_far.completion_ids

    def sample_of(self, index: int) -> "Bundle":
        """One of its samples alone."""
        return replace(self, seed=self.seed + index, num_samples=1)

    def is_followed_by(self, request: GenerateRequest) -> bool:
        """Whether a request could be its next sample. What has begun is alone: its seed is not that of a
        sample but of the place where it goes on."""
        return self.so_far is None and Bundle.of(request) == self.sample_of(self.num_samples)


def bundle(
    requests: Sequence[GenerateRequest], *, num_engines: int | None, max_samples: int = MAX_SAMPLES
) -> list[Bundle]:
    """All requests, in the order given, in as few calls as that many engines can share fairly. With None
    they are not shared out: other requests keep the other engines busy."""
    most = min(MAX_SAMPLES, max_samples)
    if num_engines is not None:
        most = max(1, min(most, len(requests) // (MIN_CALLS_PER_ENGINE * max(1, num_engines))))
    bundles: list[Bundle] = []
    for request in requests:
        if bundles and bundles[-1].num_samples < most and bundles[-1].is_followed_by(request):
            bundles[-1] = replace(bundles[-1], num_samples=bundles[-1].num_samples + 1)
        else:
            bundles.append(Bundle.of(request))
    return bundles


@dataclass(frozen=True)
class AnswerLimits:
    """What no answer of an engine that is well goes beyond. `vocab_size` is None where it is not known."""

    max_tokens: int
    """Most tokens of one completion."""
    vocab_size: int | None = None

    def max_bytes(self, *, num_samples: int) -> int:
        """Most bytes of an answer with so many completions."""
        return _MAX_REST_BYTES + num_samples * self.max_tokens * _TOKEN_BYTES


def sampling_call(bundle: Bundle, *, sampling: SamplingSpec, cache_salt: str | None = None) -> EngineCall:
    """The call for a bundle. What has begun is a part of the prompt to the engine."""
    num_so_far = len(bundle.ids_so_far)
    parameters = sampling_parameters(
        sampling,
        seed=segment_seed(bundle.seed, start=num_so_far),
        max_tokens=bundle.max_tokens,
        stop=bundle.stop,
        own=bundle.own_parameters,
    )
    return EngineCall(
        (*bundle.prompt_ids, *bundle.ids_so_far),
        parameters | {"n": bundle.num_samples, "max_tokens": parameters["max_tokens"] - num_so_far},
        cache_salt=cache_salt,
        num_so_far=num_so_far,
    )


def joined(before: Rollout | None, after: Rollout) -> Rollout:
    """A completion of which `after` was sampled behind `before`."""
    if before is None:
        return after
    num_before = len(before.completion_ids)
    spans = list(before.versions)
    for span in (span.behind(num_before) for span in after.versions):
        if spans and spans[-1].version == span.version:
            spans[-1] = replace(spans[-1], end=span.end)
        else:
            spans.append(span)
    seconds = [each.sampling_seconds for each in (before, after) if each.sampling_seconds is not None]
    num_tokens = num_before + len(after.completion_ids)
    segments = (
        *(before.segments or (Segment(before.engine, 0, num_before),)),
        Segment(after.engine, num_before, num_tokens),
    )
    return replace(
        after,
        prompt_ids=before.prompt_ids,
        completion_ids=before.completion_ids + after.completion_ids,
        rollout_logprobs=before.rollout_logprobs + after.rollout_logprobs,
        versions=tuple(spans),
        sampling_seconds=math.fsum(seconds) if seconds else None,
        engine=", ".join(dict.fromkeys(segment.engine for segment in segments)),
        segments=segments,
    )


def read_rollouts(answer: bytes, *, bundle: Bundle, engine: str, limits: AnswerLimits) -> list[Rollout]:
    """The completions in an answer, in order, or the rest of one that had begun. Raises BadAnswerError unless
    all are versioned and within what an engine can sample."""
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
    is_whole = len(rollout.rollout_logprobs) == num_tokens and (num_tokens or rollout.is_aborted)
    is_of_one_call = rollout.loss_mask is None and not rollout.segments
    if not is_whole or [*starts, num_tokens] != [0, *ends] or not is_of_one_call:
        raise BadAnswerError(f"engine {engine} sent {num_tokens} tokens with parts missing")


def _require_within(limits: AnswerLimits, rollout: Rollout, *, engine: str) -> None:
    token_ids, logprobs = rollout.completion_ids, rollout.rollout_logprobs
    if len(token_ids) > limits.max_tokens:
        raise BadAnswerError(
            f"engine {engine} sent {len(token_ids)} tokens where at most {limits.max_tokens} were asked for"
        )
    lowest, highest = min(token_ids, default=0), max(token_ids, default=0)
    if lowest < 0:
        raise BadAnswerError(f"engine {engine} sent token {lowest}")
    if limits.vocab_size is not None and highest >= limits.vocab_size:
        raise BadAnswerError(f"engine {engine} sent token {highest} of a vocabulary of {limits.vocab_size}")
    for logprob in logprobs:
        if not -math.inf < logprob <= _LARGEST_LOGPROB:
            raise BadAnswerError(f"engine {engine} sent a logprob of {logprob:g}")


def require_versions(rollouts: Iterable[Rollout], *, allowed: Sequence[PolicyVersion]) -> None:
    """Raises BadAnswerError unless every token was sampled with one of the weights `allowed`, and none with
    older ones than a token before it."""
    for rollout in rollouts:
        before = allowed[0]
        for span in rollout.versions:
            if span.version not in allowed:
                wanted = str(allowed[0]) if len(allowed) == 1 else f"{allowed[0]} to {allowed[-1]}"
                raise BadAnswerError(
                    f"engine {rollout.engine} sampled with weights {span.version}, not {wanted}"
                )
            if span.version < before:
                raise BadAnswerError(
                    f"engine {rollout.engine} sampled with weights {span.version} after {before}"
                )
            before = span.version


def num_recomputed(rollout: Rollout) -> int:
    """Tokens that the engine computed again because weights changed within a completion: at each change its
    prompt and what was sampled so far."""
    return sum(len(rollout.prompt_ids) + span.start for span in rollout.versions[1:])


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
