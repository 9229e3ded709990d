"""The reward of completions: called once for each prompt, with the arguments that TRL gives to functions."""


def right_letters(completions, solution, letters, log_metric, **others):
    """One number for each completion: the share of letters that are right in their place, from 0 to 1.

    `completions` are texts; `solution` and `letters` are columns of train.jsonl, lists in the same order.
    """
    rewards = []
    for completion, right, wanted in zip(completions, solution, letters, strict=True):
        hits = sum(ours == theirs for ours, theirs in zip(completion, right, strict=False))
        rewards.append(hits / max(len(completion), wanted))
    log_metric("own/solved", sum(reward == 1.0 for reward in rewards) / len(rewards))
    return rewards
