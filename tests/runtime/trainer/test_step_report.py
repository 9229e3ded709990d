"""The completions of a step as people read them."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.algorithm.types import AdvantageOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.report.episodes import Said
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rollouts.group import Group, advantages_of
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    AgentTurn,
    GenerateRequest,
    GivenUp,
    Rollout,
    Segment,
    VersionSpan,
)
from grpo_runtime.rollouts.stream import StepGroups
from grpo_runtime.trainer.step_report import Learned, samples_of, step_metrics


def test_an_episode_is_shown_by_the_sequence_in_which_it_ended_and_counted_by_all() -> None:
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
    turns = [
        AgentTurn(sequence=sequence, start=0, end=1, seconds=1.0, waited_seconds=0.0, chat=0)
        for sequence in (0, 2, 1)
    ]
    episode = replace(first, branches=branches)
    group = Group(
        step=4,
        number=0,
        prompt=Prompt(index=0, content="", columns={}),
        requests=[GenerateRequest(first.prompt_ids, seed=0)] * 2,
        rollouts=[
            episode,
            replace(
                episode,
                trajectory={"chats": [[]]},
                calls=AgentCalls(environment="game", turns=turns),
            ),
        ],
        columns=(Column(values=[1.0, 1.0]),),
    )
    samples = samples_of(
        [group],
        names=["right"],
        rewards=[1.0, 1.0],
        advantages=[0.5, 0.5],
        decoder=CompletionDecoder.of(tokenizer),
    )
    assert [(sample.prompt, sample.completion, sample.is_terminated) for sample in samples] == [
        ("c=", "cba", False),
        ("b=", "b", True),
    ]
    for sample in samples:
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
                replace(
                    rollout("a=", "abc", engine="two", is_terminated=False),
                    segments=(Segment("one", 0, 1), Segment("two", 1, 3)),
                ),
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
        rewards=[1.0, 0.25, math.nan, 0.5],
        advantages=[0.7, -0.7, 0.0, 0.3],
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
    assert [sample.segments for sample in samples] == ["", "0-1 one, 1-3 two", "", ""]


def test_an_episode_is_shown_turn_by_turn_with_what_was_sampled_by_which_weights() -> None:
    """One sequence of two turns, of which the second has weights of two versions, and one that brought its
    tokens, twice."""
    tokenizer = char_tokenizer(max_length_tokens=16)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text).input_ids)

    def span(step: int, start: int, end: int) -> VersionSpan:
        return VersionSpan(PolicyVersion(1, step), start, end)

    def sequence(prompt: str, completion: str, *spans: VersionSpan) -> Rollout:
        return Rollout(ids(prompt), ids(completion), (-1.0,) * len(completion), spans, True, "one")

    def turn(sequence: int, start: int, end: int, **options: Any) -> AgentTurn:
        return AgentTurn(sequence=sequence, start=start, end=end, seconds=2.0, waited_seconds=0.5, **options)

    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "ab", "tool_calls": []},
        {"role": "tool", "content": "=c"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "ba"},
    ]
    rollout = replace(
        sequence("x=", "ab=cba", span(3, 0, 2), span(3, 4, 5), span(4, 5, 6)),
        segments=(Segment("one", 4, 5), Segment("two", 5, 6)),
        branches=(sequence("c=", "ab=cb", span(5, 0, 1), span(5, 4, 5)),),
        returned=0.5,
        trajectory={"chats": [chat], "state": {"board": [1]}, "output": "ends"},
        calls=AgentCalls(
            environment="game",
            turns=[
                turn(0, 0, 2, chat=0, messages=(0, 1)),
                turn(0, 4, 6, chat=0, messages=(2, 4)),
                *(turn(1, 0, 1), turn(1, 4, 5)),
            ],
        ),
    )
    group = Group(
        step=4,
        number=0,
        prompt=Prompt(index=0, content="", columns={}),
        requests=[GenerateRequest(rollout.prompt_ids, seed=0)],
        rollouts=[rollout],
        columns=(Column(values=[1.0]),),
    )
    decoder = CompletionDecoder.of(tokenizer)
    [sample] = samples_of([group], names=["right"], rewards=[1.0], decoder=decoder)
    episode = sample.episode
    assert sample.advantage is None and episode is not None
    assert (episode.environment, episode.returned, episode.state) == ("game", 0.5, {"board": [1]})
    assert episode.output == "ends"
    assert [(found.said, found.completion, found.policy_versions) for found in episode.turns] == [
        ([Said("user", "x")], "ab", "1.3"),
        ([Said("tool", "=c"), Said("user", "")], "ba", "1.3 1.4"),
        ([Said("tokens", "c=")], "a", "1.5"),
        ([Said("tokens", "b=c")], "b", "1.5"),
    ]
    assert [(found.sequence, found.num_tokens) for found in episode.turns] == [(1, 2), (1, 2), (2, 1), (2, 1)]
    assert {(found.seconds, found.waited_seconds) for found in episode.turns} == {(2.0, 0.5)}
    # of its own tokens, and of no turn of another sequence
    assert [found.segments for found in episode.turns] == ["", "0-1 one, 1-2 two", "", ""]
    assert sample.segments == ""


def test_what_was_given_up_is_shown_with_its_failure_also_of_a_group_that_is_left_out() -> None:
    tokenizer = char_tokenizer(max_length_tokens=16)

    def group(prompt: str, *found: Rollout | GivenUp | None, columns: tuple[Column, ...] | None) -> Group:
        ids = tuple(tokenizer(prompt).input_ids)
        return Group(
            step=4,
            number=0,
            prompt=Prompt(index=0, content="", columns={}),
            requests=[GenerateRequest(ids, seed=0)] * len(found),
            rollouts=list(found),
            columns=columns,
        )

    ids = tuple(tokenizer("c").input_ids)
    made = Rollout(tuple(tokenizer("a=").input_ids), ids, (-1.0,), (), True, "one")
    samples = samples_of(
        [
            group("a=", GivenUp("it raised", 3), made, made, columns=(Column(values=[1.0, 0.0]),)),
            group("c=", made, made, columns=(Column(values=[1.0, 0.0]),)),
        ],
        left_out=[
            group("d=", made, GivenUp("before", 3), columns=None),
            *[group("d=", made, columns=None)] * 15,
            group("b=", made, GivenUp("it wrote: no", 3), GivenUp("it died", 3), columns=None),
        ],
        names=["right"],
        rewards=[1.0, 0.0, 1.0, 0.0],
        advantages=[0.5, -0.5, 0.5, -0.5],
        decoder=CompletionDecoder.of(tokenizer),
    )
    assert [(sample.group, sample.prompt, sample.reward, sample.given_up) for sample in samples] == [
        (0, "a=", 1.0, ""),
        (0, "a=", 0.0, ""),
        (0, "a=", None, "it raised"),
        (1, "a=", 1.0, ""),
        (1, "a=", 0.0, ""),
        (17, "b=", None, "it wrote: no"),
        (17, "b=", None, "it died"),
    ]
    assert [sample.rewards for sample in samples[4:]] == [{"right": 0.0}, {"right": None}, {"right": None}]


def test_the_reward_of_an_environment_is_of_what_is_trained_and_its_failures_are_of_all_that_was_sampled():
    def group(number: int, *found: Rollout | GivenUp) -> Group:
        return Group(
            step=0,
            number=number,
            prompt=Prompt(index=0, content="", columns={}),
            requests=[GenerateRequest((1,), seed=0)] * len(found),
            rollouts=list(found),
            columns=(Column(values=[float(number)] * sum(isinstance(one, Rollout) for one in found)),),
        )

    turn = AgentTurn(sequence=0, start=0, end=1, seconds=2.0, waited_seconds=0.5)
    calls = AgentCalls(environment="go", turns=[turn], failures={"policy": 1})
    rollout = Rollout((1,), (2,), (-1.0,), (), True, "fake", calls=calls)
    failed = GivenUp("it raised", 3)
    trained, filtered, left_out = (
        group(1, rollout, rollout),
        group(5, rollout, rollout),
        group(7, rollout, failed),
    )
    groups = StepGroups(
        trained=[trained],
        sampled=[trained, filtered],
        left_out=[left_out],
        metrics={},
        sync=None,
        sampler={},
    )
    options = AdvantageOptions(group_size=2, weights=(1.0,))
    learned = Learned(advantages_of([trained], options=options), metrics={})
    scorer = SimpleNamespace(names=["right"], metrics=lambda groups: {})
    values = step_metrics(
        groups,
        learned,
        scorer=scorer,  # type: ignore[arg-type]
        measured={"step_time": 1.0},
        environment=lambda _: "go",
    )
    assert {name: value for name, value in values.items() if name.startswith(("env/", "agents/"))} == {
        "env/go/reward": 1.0,
        "env/go/mean_turns": 1.0,
        "env/go/mean_sequences": 1.0,
        "env/go/turn_tokens": 1.0,
        "env/go/turn_seconds": 2.0,
        "env/go/turn_waited_seconds": 0.5,
        "env/go/failures/policy": 5.0,
        "env/go/failures/environment": 3.0,
        "agents/given_up_episodes": 1.0,
        "agents/left_out_groups": 1.0,
    }
