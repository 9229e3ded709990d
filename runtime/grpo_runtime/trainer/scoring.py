"""Scores the completions of a step. B completions, F reward functions."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt, prefill_of
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.report.scoring import unscored_message
from grpo_runtime.rewards.pool import COUNTS, RewardPool, ScoredChunk
from grpo_runtime.rewards.types import (
    TRIAL_TEXT,
    OpenCalls,
    RewardMatrix,
    RewardRequest,
)
from grpo_runtime.rollout.interface import Rollout


@dataclass(frozen=True)
class Scores:
    """`metrics` are what the functions logged."""

    values: Sequence[Sequence[float | None]]
    """[B][F], None where a function gave none."""
    metrics: Mapping[str, float]

    @property
    def rewards(self) -> torch.Tensor:
        """[B, F] float32, NaN where a function gave none."""
        rows = [[math.nan if value is None else value for value in row] for row in self.values]
        return torch.tensor(rows, dtype=torch.float32)


def merge_scores(rounds: Sequence[Scores]) -> Scores:
    """Of all rounds of a step, in their order. Counts of failures add up; what functions logged are means
    over rounds, by the number of completions."""
    by_name: dict[str, list[Scores]] = {}
    for scores in rounds:
        for name in scores.metrics:
            by_name.setdefault(name, []).append(scores)
    return Scores(
        values=[row for scores in rounds for row in scores.values],
        metrics={name: _merged(found, name) for name, found in by_name.items()},
    )


def _merged(rounds: Sequence[Scores], name: str) -> float:
    if len(rounds) == 1:
        return rounds[0].metrics[name]
    if name.endswith(COUNTS):
        return sum(scores.metrics[name] for scores in rounds)
    total = sum(scores.metrics[name] * len(scores.values) for scores in rounds)
    return total / sum(len(scores.values) for scores in rounds)


class StepScoring:
    """Scores one step, each group as soon as all of its completions are finished. G completions a group."""

    def __init__(
        self,
        num_groups: int,
        *,
        group_size: int,
        submit: Callable[[int, Sequence[Rollout]], "asyncio.Task[ScoredChunk]"],
        put_together: Callable[[Sequence[ScoredChunk]], RewardMatrix],
        open_calls: Callable[[], Sequence[OpenCalls]],
        of_what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`submit` begins to score the group of that number, and `put_together` makes the step's rewards of
        all groups. `open_calls` are those of all functions, and `of_what` is what messages call the step."""
        self._num_groups = num_groups
        self._group_size = group_size
        self._submit = submit
        self._put_together = put_together
        self._open_calls = open_calls
        self._of_what = of_what
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._quiet_since = clock()
        self._finished: dict[int, Rollout] = {}
        self._groups: dict[int, asyncio.Task[ScoredChunk]] = {}

    def finished(self, index: int, rollout: Rollout) -> None:
        """Completion `index` of the step is finished. May be called in any thread."""
        # an engine that was not asked to stop may finish one after the loop has ended
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, index, rollout)

    async def scores(self, rollouts: Sequence[Rollout]) -> Scores:
        """The rewards of all completions of the step, once all groups are scored: also those of groups that
        `finished` was not told about.

        Raises UserError when a function fails more than it may, and what else a call raises, which ends the
        others.
        """
        self._quiet_since = self._clock()
        for index, rollout in enumerate(rollouts):
            self._take(index, rollout)
        try:
            chunks = await asyncio.gather(*(self._groups[group] for group in range(self._num_groups)))
        finally:
            for task in self._groups.values():
                task.cancel()
        matrix = self._put_together(chunks)
        return Scores(values=matrix.values, metrics=matrix.metrics)

    def waits_for(self) -> str:
        """The sentence about rewards that have not come for some seconds; empty while they come."""
        return unscored_message(
            self._of_what,
            num_scored=sum(task.done() for task in self._groups.values()),
            num_groups=self._num_groups,
            quiet_seconds=self._clock() - self._quiet_since,
            open_calls=self._open_calls(),
        )

    def _take(self, index: int, rollout: Rollout) -> None:
        group = index // self._group_size
        if group in self._groups:
            return
        self._finished[index] = rollout
        indices = range(group * self._group_size, (group + 1) * self._group_size)
        if all(one in self._finished for one in indices):
            rollouts = [self._finished.pop(one) for one in indices]
            self._groups[group] = self._submit(group, rollouts)
            self._groups[group].add_done_callback(self._note_scored)

    def _note_scored(self, _: object) -> None:
        self._quiet_since = self._clock()


class Scorer:
    """Asks the reward functions about the rollouts of a run."""

    def __init__(
        self,
        pool: RewardPool,
        run_config: RunConfig,
        *,
        decoder: CompletionDecoder,
        group_size: int | None = None,
        is_evaluation: bool = False,
    ) -> None:
        """`group_size` completions are of each prompt; those of a step if it is left out. Failures of an
        evaluation count for no step."""
        self.names = [reward.name for reward in run_config.rewards]
        self._pool = pool
        self._group_size = group_size or run_config.algorithm.group_size
        self._is_evaluation = is_evaluation
        self._total_steps = run_config.total_steps
        self._decoder = decoder

    def begin(self, prompts: Sequence[Prompt], *, step: int, first_group: int = 0) -> StepScoring:
        """Be ready for the completions of `prompts`, which follow `step` finished steps and `first_group`
        groups of this one."""
        return StepScoring(
            len(prompts),
            group_size=self._group_size,
            submit=lambda group, rollouts: self._pool.submit(
                self._chunk(first_group + group, prompts[group], rollouts, step=step)
            ),
            put_together=lambda chunks: self._pool.put_together(
                chunks, step=step, is_evaluation=self._is_evaluation
            ),
            open_calls=self._pool.open_calls,
            of_what=f"the evaluation after step {step}" if self._is_evaluation else f"step {step + 1}",
        )

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
        )
        await self._pool.try_out(self._chunk(0, prompt, [rollout] * self._group_size, step=step))

    def _chunk(self, group: int, prompt: Prompt, rollouts: Sequence[Rollout], *, step: int) -> RewardRequest:
        """One group: functions compare completions of the same prompt, and one that is slow costs no other
        group its rewards."""
        return RewardRequest(
            prompts=[prompt.content] * len(rollouts),
            completions=[self._decoder.text(rollout.completion_ids) for rollout in rollouts],
            prefills=[prefill_of(prompt.content, text=self._decoder.ending(rollouts[0].prompt_ids))]
            * len(rollouts),
            completion_ids=[list(rollout.completion_ids) for rollout in rollouts],
            columns={name: [value] * len(rollouts) for name, value in prompt.columns.items()},
            group_ids=[group] * len(rollouts),
            step=step,
            is_evaluation=self._is_evaluation,
            total_steps=self._total_steps,
        )


def advantage_options(run_config: RunConfig) -> AdvantageOptions:
    """How a run turns rewards into advantages."""
    algorithm = run_config.algorithm
    return AdvantageOptions(
        group_size=algorithm.group_size,
        weights=tuple(reward.weight for reward in run_config.rewards),
        scale_rewards=algorithm.scale_rewards.value,
        aggregation=algorithm.aggregation.value,
        baseline=algorithm.baseline.value,
    )
