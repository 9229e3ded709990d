"""The scorer of a `reasoning-gym://` dataset."""

from functools import lru_cache
from typing import Any

from grpo_runtime.data.reasoning_gym import ENTRY_INDEX
from grpo_runtime.data.reasoning_gym_task import make_entry, make_task
from grpo_runtime.rewards.text import completion_text, final_answer
from grpo_runtime.rewards.types import BuiltinOptions, RewardCall, Unscorable


def reasoning_gym(options: BuiltinOptions) -> RewardCall:
    """What the task itself gives for the final answer of a completion, from 0 to 1.

    A problem is made again from its number, so the scorer sees the very entry that the prompt was made of.
    Raises UserError when the task cannot be made.
    """
    task = make_task(options.dataset_source, seed=options.seed)

    @lru_cache(maxsize=4096)
    def entry(index: int) -> dict[str, Any]:
        return make_entry(task, index)

    def score(completion: Any, index: int) -> Any:
        try:
            return task.score_answer(final_answer(completion_text(completion)), entry(index))
        except Exception as error:  # some scorers raise on an answer they cannot read
            return Unscorable(
                f"the scorer of {options.dataset_source} raised {type(error).__name__}: {error}"
            )

    def call(*, completions: list[Any], **columns: list[Any]) -> list[Any]:
        return [
            score(completion, index)
            for completion, index in zip(completions, columns[ENTRY_INDEX], strict=True)
        ]

    return call
