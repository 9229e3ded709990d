"""Requests that one call to an engine carries: the same prompt, with consecutive seeds.

A call costs the engine's server and the trainer about 2 ms, as much as sampling a short completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_runtime.rollouts.interface import GenerateRequest

MAX_SAMPLES = 16
"""In one call; larger calls save little more."""
MIN_CALLS_PER_ENGINE = 4
"""Calls are what is shared out: with few of them, one engine would end long after the others."""


@dataclass(frozen=True)
class Bundle:
    """`num_samples` completions of one prompt, number i drawn with `seed` + i."""

    prompt_ids: tuple[int, ...]
    seed: int
    num_samples: int
    is_evaluation: bool = False
    max_tokens: int | None = None

    def is_followed_by(self, request: GenerateRequest) -> bool:
        """Whether a request could be its next sample."""
        following = GenerateRequest(
            self.prompt_ids, self.seed + self.num_samples, self.is_evaluation, self.max_tokens
        )
        return following == request


def bundle(
    requests: Sequence[GenerateRequest], *, num_engines: int, max_samples: int = MAX_SAMPLES
) -> list[Bundle]:
    """All requests, in the order given, in as few calls as that many engines can share fairly."""
    fair_share = len(requests) // (MIN_CALLS_PER_ENGINE * max(1, num_engines))
    most = max(1, min(MAX_SAMPLES, max_samples, fair_share))
    bundles: list[Bundle] = []
    for request in requests:
        if bundles and bundles[-1].num_samples < most and bundles[-1].is_followed_by(request):
            bundles[-1] = replace(bundles[-1], num_samples=bundles[-1].num_samples + 1)
        else:
            bundles.append(
                Bundle(request.prompt_ids, request.seed, 1, request.is_evaluation, request.max_tokens)
            )
    return bundles
