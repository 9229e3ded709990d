"""The completions of a step as people read them."""

from dataclasses import replace

import torch

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.algorithm.advantages import Advantages
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, VersionSpan
from grpo_runtime.trainer.step_report import samples_of


def test_an_episode_is_shown_by_its_last_sequence_and_counted_by_all() -> None:
    tokenizer = char_tokenizer(max_length_tokens=16)

    def sequence(prompt: str, completion: str, *, engine: str, step: int, ends: bool) -> Rollout:
        ids = tuple(tokenizer(completion).input_ids)
        spans = (VersionSpan(PolicyVersion(1, step), 0, len(ids)),)
        return Rollout(tuple(tokenizer(prompt).input_ids), ids, (-1.0,) * len(ids), spans, ends, engine)

    first = sequence("a=", "ab", engine="one", step=3, ends=True)
    branches = (
        sequence("b=", "b", engine="two", step=3, ends=True),
        sequence("c=", "cba", engine="one", step=4, ends=False),
    )
    group = Group(
        step=4,
        number=0,
        prompt=Prompt(index=0, content="", columns={}),
        requests=[GenerateRequest(first.prompt_ids, seed=0)],
        rollouts=[replace(first, branches=branches)],
        columns=(Column(values=[1.0]),),
    )
    advantages = Advantages(
        advantages=torch.tensor([0.5]), rewards=torch.tensor([1.0]), is_std_zero=torch.tensor([False])
    )
    decoder = CompletionDecoder.of(tokenizer)
    [sample] = samples_of([group], names=["right"], advantages=advantages, decoder=decoder)
    assert (sample.prompt, sample.completion, sample.is_terminated) == ("c=", "cba", False)
    assert (sample.num_tokens, sample.policy_versions, sample.engine) == (6, "1.3 1.3 1.4", "one, two")


def test_each_completion_has_its_own_group_rewards_advantage_and_origin() -> None:
    tokenizer = char_tokenizer(max_length_tokens=16)

    def rollout(prompt: str, completion: str, *, engine: str, is_terminated: bool) -> Rollout:
        ids = tuple(tokenizer(completion).input_ids)
        spans = (VersionSpan(PolicyVersion(2, 7), 0, 1), VersionSpan(PolicyVersion(2, 8), 1, len(ids)))
        return Rollout(
            tuple(tokenizer(prompt).input_ids), ids, (-1.0,) * len(ids), spans, is_terminated, engine
        )

    def group(number: int, *rollouts: Rollout, columns: tuple[Column, ...]) -> Group:
        requests = [GenerateRequest(one.prompt_ids, seed=0) for one in rollouts]
        prompt = Prompt(index=0, content="", columns={})
        # dynamic sampling leaves groups out: the numbers have gaps
        return Group(
            step=7, number=5 * number, prompt=prompt, requests=requests, rollouts=list(rollouts),
            columns=columns,
        )  # fmt: skip

    samples = samples_of(
        [
            group(
                0,
                rollout("a=", "aa", engine="one", is_terminated=True),
                rollout("a=", "abc", engine="two", is_terminated=False),
                columns=(Column(values=[1.0, 0.0]), Column(values=[0.0, 0.25])),
            ),
            group(
                1,
                rollout("b=", "b", engine="one", is_terminated=True),
                rollout("b=", "cccc", engine="two", is_terminated=True),
                columns=(Column(values=[None, 0.5]), Column(values=[None, None])),
            ),
        ],
        names=["right", "short"],
        advantages=Advantages(
            advantages=torch.tensor([0.7, -0.7, 0.0, 0.3], dtype=torch.float64),
            rewards=torch.tensor([1.0, 0.25, torch.nan, 0.5], dtype=torch.float64),
            is_std_zero=torch.zeros(4, dtype=torch.bool),
        ),
        decoder=CompletionDecoder.of(tokenizer),
    )
    assert [sample.group for sample in samples] == [0, 0, 1, 1]
    assert [(sample.prompt, sample.completion) for sample in samples] == [
        ("a=", "aa"), ("a=", "abc"), ("b=", "b"), ("b=", "cccc")
    ]  # fmt: skip
    assert [sample.rewards for sample in samples] == [
        {"right": 1.0, "short": 0.0},
        {"right": 0.0, "short": 0.25},
        {"right": None, "short": None},
        {"right": 0.5, "short": None},
    ]
    assert [sample.reward for sample in samples] == [1.0, 0.25, None, 0.5]
    assert [sample.advantage for sample in samples] == [0.7, -0.7, 0.0, 0.3]
    assert [sample.num_tokens for sample in samples] == [2, 3, 1, 4]
    assert [sample.is_terminated for sample in samples] == [True, False, True, True]
    assert [sample.engine for sample in samples] == ["one", "two", "one", "two"]
    assert {sample.policy_versions for sample in samples} == {"2.7 2.8"}
