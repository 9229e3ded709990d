"""The completions of a step as people read them. B completions, F reward functions."""

import math
from collections.abc import Sequence

from grpo_runtime.algorithm.advantages import Advantages
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.report.sample import Sample
from grpo_runtime.rollout.interface import Rollout


def samples_of(
    rollouts: Sequence[Rollout],
    *,
    scores: Sequence[Sequence[float | None]],
    names: Sequence[str],
    advantages: Advantages,
    group_size: int,
    decoder: CompletionDecoder,
) -> list[Sample]:
    """The B completions of a step, group by group. `scores` is [B][F], with the functions in the order of
    `names`."""
    rewards, values = advantages.rewards.tolist(), advantages.advantages.tolist()
    return [
        Sample(
            group=index // group_size,
            prompt=str(decoder.tokenizer.decode(list(rollout.prompt_ids))),
            completion=decoder.text(rollout.completion_ids),
            rewards=dict(zip(names, scores[index], strict=True)),
            reward=None if math.isnan(rewards[index]) else rewards[index],
            advantage=values[index],
            num_tokens=len(rollout.completion_ids),
            is_terminated=rollout.is_terminated,
            policy_versions=" ".join(str(span.version) for span in rollout.versions),
            engine=rollout.engine,
        )
        for index, rollout in enumerate(rollouts)
    ]
