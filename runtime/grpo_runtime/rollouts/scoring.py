"""Asks the reward functions about groups."""

from collections.abc import Sequence
from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import Prompt, prefill_of
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.pool import RewardPool, column_metrics
from grpo_runtime.rewards.types import TRIAL_TEXT, OpenCalls, RewardRequest
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout


class Scorer:
    """The reward functions of a run, as groups are given to them."""

    def __init__(self, pool: RewardPool, run_config: RunConfig, *, decoder: CompletionDecoder) -> None:
        self.names = [reward.name for reward in run_config.rewards]
        self._pool = pool
        self._group_size = run_config.algorithm.group_size
        self._total_steps = run_config.total_steps
        self._decoder = decoder
        self._has_agents = run_config.environments is not None

    async def score(self, group: Group) -> tuple[Column, ...]:
        """What each function gives for a group that is sampled. Functions compare completions of one prompt,
        and one that is slow costs no other group its rewards."""
        return await self._pool.submit(self._request(group))

    def judge(self, groups: Sequence[Group], *, step: int) -> None:
        """Look at the failures of groups of the step after `step` finished ones, or of an evaluation, which
        count for no step.

        Raises UserError when a function fails more than it may.
        """
        given = [group.scored_columns for group in groups]
        self._pool.judge(given, step=step, is_evaluation=groups[0].is_evaluation)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """What the functions logged, and how often they failed."""
        return column_metrics(self.names, [group.scored_columns for group in groups])

    def open_calls(self) -> list[OpenCalls]:
        """The functions that are waited for."""
        return self._pool.open_calls()

    def name_of(self, group: Group) -> str:
        """Name of a group's step in messages."""
        if group.is_evaluation:
            return f"the evaluation after step {group.step}"
        return f"step {group.step + 1}"

    async def try_out(self, prompt: Prompt, *, step: int) -> None:
        """Call each function of the user once with a group of completions of `prompt`: see
        `RewardPool.try_out`. `step` steps are done."""
        token_ids = tuple(self._decoder.tokenizer(TRIAL_TEXT, add_special_tokens=False)["input_ids"])
        rollout = Rollout(
            prompt_ids=(),
            completion_ids=token_ids,
            rollout_logprobs=(0.0,) * len(token_ids),
            versions=(),
            is_terminated=True,
            engine="",
            trajectory={"chats": [_trial_chat(prompt)], "state": None},
        )
        requests = [GenerateRequest((), seed=0)] * self._group_size
        group = Group(
            step=step,
            number=0,
            prompt=prompt,
            requests=requests,
            rollouts=[rollout] * self._group_size,
        )
        await self._pool.try_out(self._request(group))

    def _request(self, group: Group) -> RewardRequest:
        prompt, rollouts = group.prompt, group.completions
        prefill = prefill_of(prompt.content, text=self._decoder.ending(rollouts[0].prompt_ids))
        return RewardRequest(
            prompts=[prompt.content] * len(rollouts),
            completions=[self._decoder.text(rollout.last.completion_ids) for rollout in rollouts],
            prefills=[prefill] * len(rollouts),
            returned=[rollout.returned for rollout in rollouts] if self._has_agents else [],
            trajectories=[rollout.trajectory for rollout in rollouts] if self._has_agents else [],
            completion_ids=[list(rollout.last.completion_ids) for rollout in rollouts],
            columns={name: [value] * len(rollouts) for name, value in prompt.columns.items()},
            group_ids=[group.number] * len(rollouts),
            step=group.step,
            is_evaluation=group.is_evaluation,
            total_steps=self._total_steps,
        )


def _trial_chat(prompt: Prompt) -> list[dict[str, Any]]:
    asked = prompt.content
    before = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    return [*before, {"role": "assistant", "content": TRIAL_TEXT}]
