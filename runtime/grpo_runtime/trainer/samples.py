"""The completions of a step as people read them."""

import math
from collections.abc import Sequence

from grpo_runtime.algorithm.advantages import Advantages
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.report.sample import Sample
from grpo_runtime.rollouts.group import Group


def samples_of(
    groups: Sequence[Group], *, names: Sequence[str], advantages: Advantages, decoder: CompletionDecoder
) -> list[Sample]:
    """The B completions of a step, group by group, with the rewards of the functions `names`."""
    rewards, values = iter(advantages.rewards.tolist()), iter(advantages.advantages.tolist())
    return [
        Sample(
            group=place,
            prompt=str(decoder.tokenizer.decode(list(rollout.prompt_ids))),
            completion=decoder.text(rollout.completion_ids),
            rewards=dict(zip(names, scores, strict=True)),
            reward=None if math.isnan(reward := next(rewards)) else reward,
            advantage=next(values),
            num_tokens=len(rollout.completion_ids),
            is_terminated=rollout.is_terminated,
            policy_versions=" ".join(str(span.version) for span in rollout.versions),
            engine=rollout.engine,
        )
        for place, group in enumerate(groups)
        for rollout, scores in zip(group.completions, group.rewards, strict=True)
    ]
