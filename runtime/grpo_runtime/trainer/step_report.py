"""What a step reports: its metrics, and its completions as people read them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.learning_signal import Lack
from grpo_runtime.algorithm.advantages import Advantages, reward_metrics
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.report.episodes import Episode, EpisodeTurn, Said
from grpo_runtime.report.metrics import (
    completion_metrics,
    environment_metrics,
    environment_rewards,
    sync_metrics,
)
from grpo_runtime.report.overlap import IdleEngines, wait_metrics
from grpo_runtime.report.samples import Sample
from grpo_runtime.rollouts.group import Group, completions_of, rewards_of
from grpo_runtime.rollouts.interface import AgentCalls, GivenUp, Rollout, Segment
from grpo_runtime.rollouts.journal.journal import REPLAYED
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.rollouts.stream import StepGroups

GIVEN_UP, LEFT_OUT = "agents/given_up_episodes", "agents/left_out_groups"
"""Metrics of what could not be sampled."""
_MOST_LEFT_OUT = 16
"""Of so many groups that are left out people see what was given up: an environment that always fails may
leave out any number."""


@dataclass(frozen=True)
class Learned:
    """What the update computed of the groups of a step."""

    advantages: Advantages
    metrics: Mapping[str, float]

    @property
    def lack(self) -> Lack | None:
        """What the step lacked that taught nothing; None where it had something to learn. A gradient that is
        not finite is no gradient of 0: `skipped_updates` reports it."""
        if self.advantages.rewards.isnan().all():
            return Lack.REWARD
        if not self.advantages.advantages.any():
            return Lack.DIFFERENCE
        return Lack.GRADIENT if self.metrics.get("grad_norm") == 0 else None


def step_metrics(
    groups: StepGroups,
    learned: Learned,
    *,
    scorer: Scorer,
    measured: Mapping[str, float],
    idle: IdleEngines | None = None,
    environment: Callable[[Group], str] | None = None,
) -> dict[str, float]:
    """The metrics of a step by TRL's names; `measured` are its seconds, and what an evaluation found. `idle`
    is given in asynchronous training, and `environment`, the name of that of a group, where there are any."""
    rewards, completions = rewards_of(groups.trained), completions_of(groups.trained)
    values = {
        **scorer.metrics(groups.sampled),
        **learned.metrics,
        **reward_metrics(rewards, names=scorer.names, advantages=learned.advantages),
        **groups.metrics,
        **measured,
    }
    # a user's own metric may be NaN, which no report can hold
    values = {name: value for name, value in values.items() if math.isfinite(value)}
    values |= completion_metrics(completions)
    values |= environment_rewards(completions, learned.advantages.rewards.tolist())
    if environment is not None:
        values |= environment_metrics(groups.all_sampled, environment=environment)
    values |= _failure_metrics(groups)
    values |= sync_metrics(groups.sync) if groups.sync else {}
    if not values.get(REPLAYED):
        # where samples were replayed it would say how fast a disk is
        num_tokens = sum(rollout.num_sampled for rollout in completions_of(groups.sampled))
        values["tokens_per_second"] = num_tokens / values["step_time"]
        if idle is not None:
            values |= wait_metrics(values, idle=idle, num_tokens=num_tokens)
    return values


def _failure_metrics(groups: StepGroups) -> dict[str, float]:
    """What could not be sampled."""
    num_given_up = sum(len(group.given_up) for group in groups.all_sampled)
    found = {GIVEN_UP: num_given_up, LEFT_OUT: len(groups.left_out)}
    return {name: float(num) for name, num in found.items() if num}


def samples_of(
    groups: Sequence[Group],
    *,
    left_out: Sequence[Group] = (),
    names: Sequence[str],
    rewards: Sequence[float],
    advantages: Sequence[float] | None = None,
    decoder: CompletionDecoder,
) -> list[Sample]:
    """The B completions of a step, group by group, with the rewards of the functions `names`, and why others
    were given up. `rewards` are their weighted sums, [B] with NaN for none, and `advantages` are [B], or None
    in an evaluation. Of an episode of several sequences it has the text of the one in which it ended. Of the
    newest groups that are `left_out`, which nobody has scored, there is what was given up."""
    of_all: Sequence[float | None] = [None] * len(rewards) if advantages is None else advantages
    sums, values = iter(rewards), iter(of_all)
    made = [
        Sample(
            group=place,
            prompt=str(decoder.tokenizer.decode(list(rollout.last.prompt_ids))),
            completion=decoder.text(rollout.last.completion_ids),
            rewards=dict(zip(names, scores, strict=True)),
            reward=None if math.isnan(reward := next(sums)) else reward,
            advantage=next(values),
            num_tokens=sum(len(sequence.completion_ids) for sequence in rollout.sequences),
            is_terminated=rollout.last.is_terminated,
            policy_versions=" ".join(
                str(span.version) for sequence in rollout.sequences for span in sequence.versions
            ),
            engine=", ".join(dict.fromkeys(sequence.engine for sequence in rollout.sequences)),
            segments="" if rollout.calls is not None else _segments_text(rollout.segments),
            episode=None if rollout.calls is None else _episode(rollout, rollout.calls, decoder.tokenizer),
        )
        for place, group in enumerate(groups)
        for rollout, scores in zip(group.completions, group.rewards, strict=True)
    ]
    given_up = [
        Sample.of_given_up(
            found.why,
            group=place,
            prompt=str(decoder.tokenizer.decode(list(request.prompt_ids))),
            names=names,
        )
        for place, group in enumerate((*groups, *left_out[-_MOST_LEFT_OUT:]))
        for request, found in zip(group.requests, group.rollouts, strict=True)
        if isinstance(found, GivenUp)
    ]
    return sorted([*made, *given_up], key=lambda sample: sample.group)


def _episode(rollout: Rollout, calls: AgentCalls, tokenizer: PreTrainedTokenizerBase) -> Episode:
    trajectory = rollout.trajectory or {}
    ends: dict[int, int] = {}
    """Where the newest turn of each sequence ends."""
    turns = []
    for turn in calls.turns:
        sequence = rollout.sequences[turn.sequence]
        if turn.chat is not None:
            said = [Said.of(message) for message in trajectory["chats"][turn.chat][slice(*turn.messages)]]
        else:
            end = ends.get(turn.sequence)
            new = sequence.prompt_ids if end is None else sequence.completion_ids[end : turn.start]
            said = [Said("tokens", str(tokenizer.decode(list(new))))]
        ends[turn.sequence] = turn.end
        versions = [span for span in sequence.versions if turn.start <= span.start < turn.end]
        segments = [each for each in sequence.segments if turn.start <= each.start < turn.end]
        turns.append(
            EpisodeTurn(
                said=said,
                completion=str(tokenizer.decode(list(sequence.completion_ids[turn.start : turn.end]))),
                sequence=turn.sequence + 1,
                num_tokens=turn.end - turn.start,
                policy_versions=" ".join(str(span.version) for span in versions),
                seconds=turn.seconds,
                waited_seconds=turn.waited_seconds,
                segments=_segments_text(segments, start=turn.start),
            )
        )
    return Episode(
        environment=calls.environment,
        turns=turns,
        returned=rollout.returned,
        state=trajectory.get("state"),
        output=trajectory.get("output", ""),
        failures=calls.failures,
    )


def _segments_text(segments: Sequence[Segment], *, start: int = 0) -> str:
    """Tokens from `start` on, and the engine that sampled them, segment by segment."""
    return ", ".join(f"{each.start - start}-{each.end - start} {each.engine}" for each in segments)
