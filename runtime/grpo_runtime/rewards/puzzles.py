"""The scorer of a `reasoning-gym://` dataset."""

from functools import lru_cache
from typing import Any

from grpo_runtime.data.reasoning_gym import ENTRY_INDEX, TASK_URL
from grpo_runtime.data.reasoning_gym_task import make_entry, make_task
from grpo_runtime.rewards.text import completion_text, final_answer
from grpo_runtime.rewards.types import RewardCall, Unscorable


def reasoning_gym(*, dataset_source: str, seed: int) -> RewardCall:
    """The task's own score of a completion's final answer, from 0 to 1.

    Each problem is made again from its number, so the scorer gets the same entry that the prompt comes from;
    those of an evaluation name their task. Raises UserError when the task cannot be made.
    """

    @lru_cache(maxsize=2)
    def task_of(url: str) -> Any:
        return make_task(url, seed=seed)

    task_of(dataset_source)

    @lru_cache(maxsize=4096)
    def entry(url: str, index: int) -> dict[str, Any]:
        return make_entry(task_of(url), index)

    def score(text: str, url: str, index: int) -> Any:
        task = task_of(url)
        try:
            return task.score_answer(final_answer(text), entry(url, index))
        except Exception as error:  # some scorers raise when they cannot read an answer
            return Unscorable(f"the scorer of {url} raised {type(error).__name__}: {error}")

    def call(*, completions: list[Any], prefills: list[str], **columns: list[Any]) -> list[Any]:
        numbers = columns[ENTRY_INDEX]
        urls = columns.get(TASK_URL) or [dataset_source] * len(numbers)
        return [
            score(prefill + completion_text(completion), url, number)
            for completion, prefill, url, number in zip(completions, prefills, urls, numbers, strict=True)
        ]

    return call
