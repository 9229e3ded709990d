"""The scorer of a `reasoning-gym://` dataset."""

from functools import lru_cache
from typing import Any

from grpo_runtime.data.reasoning_gym import ENTRY_INDEX
from grpo_runtime.data.reasoning_gym_task import make_entry, make_task
from grpo_runtime.rewards.text import completion_text, final_answer
from grpo_runtime.rewards.types import RewardCall, Unscorable


def reasoning_gym(*, dataset_source: str, seed: int) -> RewardCall:
    """The task's own score of a completion's final answer, from 0 to 1.

    Each problem is made again from its number, so the scorer gets the same entry that the prompt comes from.
    Raises UserError when the task cannot be made.
    """
    task = make_task(dataset_source, seed=seed)

    @lru_cache(maxsize=4096)
    def entry(index: int) -> dict[str, Any]:
        return make_entry(task, index)

    def score(completion: Any, index: int) -> Any:
        try:
            return task.score_answer(final_answer(completion_text(completion)), entry(index))
        except Exception as error:  # some scorers raise when they cannot read an answer
            return Unscorable(f"the scorer of {dataset_source} raised {type(error).__name__}: {error}")

    def call(*, completions: list[Any], **columns: list[Any]) -> list[Any]:
        return [
            score(completion, index)
            for completion, index in zip(completions, columns[ENTRY_INDEX], strict=True)
        ]

    return call
