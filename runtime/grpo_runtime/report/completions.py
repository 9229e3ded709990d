"""Metrics of the completions of a step, by TRL's names."""

import zlib
from array import array
from collections.abc import Sequence

from grpo_runtime.rollouts.interface import Rollout


def completion_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Lengths in sampled tokens of all completions and of the terminated ones, and the ratio of those that
    were clipped.

    As in TRL the terminated lengths are 0 when no completion is terminated. `completions/crc32` is a checksum
    over all tokens in order: two runs were the same up to the first step in which it differs.
    """
    lengths = [rollout.num_sampled for rollout in rollouts]
    terminated = [rollout.num_sampled for rollout in rollouts if rollout.is_terminated]
    return {
        **_statistics("completions/{}_length", lengths),
        **_statistics("completions/{}_terminated_length", terminated or [0]),
        "completions/clipped_ratio": 1.0 - len(terminated) / len(rollouts),
        "completions/crc32": float(_checksum(rollouts)),
    }


def count_tokens(rollouts: Sequence[Rollout]) -> tuple[int, int]:
    """The number of tokens of all prompts, each as often as it was completed, and of all completions."""
    prompts = sum(len(rollout.prompt_ids) for rollout in rollouts)
    return prompts, sum(len(rollout.completion_ids) for rollout in rollouts)


def _checksum(rollouts: Sequence[Rollout]) -> int:
    checksum = 0
    for rollout in rollouts:
        tokens = array("q", (len(rollout.completion_ids), *rollout.completion_ids))
        checksum = zlib.crc32(tokens.tobytes(), checksum)
    return checksum


def _statistics(pattern: str, lengths: Sequence[int]) -> dict[str, float]:
    return {
        pattern.format("mean"): sum(lengths) / len(lengths),
        pattern.format("min"): float(min(lengths)),
        pattern.format("max"): float(max(lengths)),
    }
