"""The sampler: every prompt once in each epoch, and a resumed run neither skips nor repeats one."""

import json
from collections import Counter
from datetime import datetime
from types import SimpleNamespace

import pytest
from dateutil import parser
from hypothesis import given
from hypothesis import strategies as st

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.reasoning_gym import ENTRY_INDEX, make_entry, make_task
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.errors import UserError


def prompts(count: int, *, text: str = "prompt") -> tuple[Prompt, ...]:
    return tuple(Prompt(index=i, content=f"{text} {i}", columns={"answer": i}) for i in range(count))


def indexes(sampler: PromptSampler, count: int) -> list[int]:
    return [prompt.index for prompt in sampler.next_prompts(count)]


@given(
    count=st.integers(1, 40),
    batches=st.lists(st.integers(0, 25), max_size=12),
    stop_after=st.integers(0, 12),
    seed=st.integers(0, 2**31),
    is_shuffled=st.booleans(),
)
def test_a_resumed_run_sees_what_an_uninterrupted_one_would(
    count: int, batches: list[int], stop_after: int, seed: int, is_shuffled: bool
) -> None:
    whole = PromptSampler(prompts(count), seed=seed, is_shuffled=is_shuffled)
    expected = [indexes(whole, size) for size in batches]

    first = PromptSampler(prompts(count), seed=seed, is_shuffled=is_shuffled)
    seen = [indexes(first, size) for size in batches[:stop_after]]
    state = json.loads(json.dumps(first.state_dict()))
    second = PromptSampler(prompts(count), seed=seed, is_shuffled=is_shuffled)
    second.load_state_dict(state)
    seen += [indexes(second, size) for size in batches[stop_after:]]

    assert seen == expected
    assert second.state_dict() == whole.state_dict()


@given(count=st.integers(1, 30), num_epochs=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_every_epoch_has_every_prompt_once(count: int, num_epochs: int, seed: int) -> None:
    sampler = PromptSampler(prompts(count), seed=seed, is_shuffled=True)
    assert Counter(indexes(sampler, count * num_epochs)) == dict.fromkeys(range(count), num_epochs)
    assert sampler.epoch == num_epochs


def test_the_shuffle_never_changes_between_releases() -> None:
    assert indexes(PromptSampler(prompts(6), seed=1, is_shuffled=True), 12) == [
        4,
        2,
        0,
        3,
        5,
        1,
        4,
        0,
        2,
        1,
        5,
        3,
    ]


def test_epochs_and_seeds_have_different_orders() -> None:
    sampler = PromptSampler(prompts(30), seed=1, is_shuffled=True)
    first, second = indexes(sampler, 30), indexes(sampler, 30)
    assert first != second
    assert first != indexes(PromptSampler(prompts(30), seed=2, is_shuffled=True), 30)


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    assert indexes(PromptSampler(prompts(3), seed=1, is_shuffled=False), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_checkpoint_of_another_dataset_is_refused() -> None:
    state = PromptSampler(prompts(5), seed=1, is_shuffled=True).state_dict()
    with pytest.raises(UserError, match="the dataset is not the one"):
        PromptSampler(prompts(5, text="other"), seed=1, is_shuffled=True).load_state_dict(state)


def problems(day: datetime, monkeypatch: pytest.MonkeyPatch, *, seed: int = 3) -> tuple[Prompt, ...]:
    """Problems of time_intervals as they are made on `day`: dateutil completes a time with today's date."""
    task = make_task("reasoning-gym://time_intervals?size=10", seed=seed)
    on_that_day = SimpleNamespace(parse=lambda text: parser.parse(text, default=day))
    monkeypatch.setattr("reasoning_gym.arithmetic.time_intervals.parser", on_that_day)
    entries = [make_entry(task, index) for index in range(10)]
    return tuple(
        Prompt(
            index=index,
            content=entry["question"],
            columns={"answer": entry["answer"], "metadata": entry["metadata"], ENTRY_INDEX: index},
        )
        for index, entry in enumerate(entries)
    )


def test_problems_with_the_date_in_their_metadata_are_the_same_dataset_on_the_next_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    today = problems(datetime(2031, 1, 1), monkeypatch)
    tomorrow = problems(datetime(2031, 1, 2), monkeypatch)
    assert today != tomorrow
    state = PromptSampler(today, seed=1, is_shuffled=True).state_dict()
    PromptSampler(tomorrow, seed=1, is_shuffled=True).load_state_dict(state)
    with pytest.raises(UserError, match="the dataset is not the one"):
        other = problems(datetime(2031, 1, 1), monkeypatch, seed=4)
        PromptSampler(other, seed=1, is_shuffled=True).load_state_dict(state)


def test_a_column_named_metadata_counts_in_every_other_dataset() -> None:
    first, other = (
        PromptSampler((Prompt(index=0, content="?", columns={"metadata": text}),), seed=1, is_shuffled=True)
        for text in "ab"
    )
    with pytest.raises(UserError, match="the dataset is not the one"):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize(("seed", "is_shuffled"), [(2, True), (1, False)])
def test_a_checkpoint_of_another_order_is_refused(seed: int, is_shuffled: bool) -> None:
    state = PromptSampler(prompts(5), seed=1, is_shuffled=True).state_dict()
    with pytest.raises(UserError, match=r"algorithm\.seed or dataset\.shuffle"):
        PromptSampler(prompts(5), seed=seed, is_shuffled=is_shuffled).load_state_dict(state)
