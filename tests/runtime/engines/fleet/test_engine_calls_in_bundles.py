"""Which requests share a call."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.engines.fleet.engine_calls import MAX_SAMPLES, MIN_CALLS_PER_ENGINE, bundle, sampling_call
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, VersionSpan


def group(prompt: int, size: int, *, first_seed: int = 0) -> list[GenerateRequest]:
    return [GenerateRequest(prompt_ids=(prompt,), seed=first_seed + sample) for sample in range(size)]


def sizes(requests: list[GenerateRequest], *, num_engines: int | None) -> list[int]:
    return [made.num_samples for made in bundle(requests, num_engines=num_engines)]


def test_a_group_is_one_call_where_there_is_work_for_all() -> None:
    step = [request for prompt in range(16) for request in group(prompt, 8)]
    assert sizes(step, num_engines=2) == [8] * 16


def test_a_large_group_is_several_calls() -> None:
    step = [request for prompt in range(16) for request in group(prompt, 64)]
    assert set(sizes(step, num_engines=2)) == {MAX_SAMPLES}


def test_few_prompts_are_cut_up_so_that_every_engine_has_its_share() -> None:
    assert len(sizes(group(1, 64), num_engines=4)) == 4 * MIN_CALLS_PER_ENGINE


def test_a_lone_group_stays_whole_where_calls_are_not_shared_out() -> None:
    assert sizes(group(1, 8), num_engines=4) == [1] * 8
    assert sizes(group(1, 8), num_engines=None) == [8]
    assert sizes(group(1, 40), num_engines=None) == [MAX_SAMPLES, MAX_SAMPLES, 8]


def test_no_call_is_larger_than_what_an_engine_may_be_given() -> None:
    made = bundle(group(1, 64), num_engines=1, max_samples=3)
    assert max(call.num_samples for call in made) == 3


def test_other_prompts_and_other_seeds_are_other_calls() -> None:
    scattered = [GenerateRequest(prompt_ids=(1,), seed=seed) for seed in (5, 9, 8, 7)]
    two_prompts = group(1, 2) + group(2, 2, first_seed=2)
    assert sizes(scattered * 8, num_engines=1) == [1] * 32
    assert sizes(two_prompts * 8, num_engines=1) == [2] * 16


def test_turns_of_several_sessions_are_calls_of_their_own_and_say_of_which() -> None:
    turns = [replace(request, session=request.seed // 2) for request in group(1, 4)]
    made = bundle(turns, num_engines=None)
    assert [(call.num_samples, call.session) for call in made] == [(2, 0), (2, 1)]


def test_samples_of_another_length_are_another_call_and_say_so() -> None:
    requests = [replace(request, max_tokens=3 + request.seed // 2) for request in group(1, 4)]
    made = bundle(requests * 8, num_engines=1)
    assert [(call.num_samples, call.max_tokens) for call in made] == [(2, 3), (2, 4)] * 8
    call = sampling_call(made[0], sampling=SamplingSpec(max_tokens=9))
    assert call.parameters["max_tokens"] == 3


def test_samples_that_go_on_from_the_same_tokens_are_calls_of_their_own() -> None:
    """Each has its own seed for the place where it goes on."""
    span = VersionSpan(PolicyVersion(1, 0), 0, 1)
    so_far = Rollout((1,), (7,), (-1.0,), (span,), is_terminated=False, engine="a", is_aborted=True)
    made = bundle([replace(request, so_far=so_far) for request in group(1, 2)], num_engines=None)
    drawn = [sampling_call(call, sampling=SamplingSpec(max_tokens=9)).parameters for call in made]
    assert [(call["n"], call["seed"]) for call in drawn] == [
        (1, segment_seed(seed, start=1)) for seed in (0, 1)
    ]


def test_nobody_to_ask_and_nothing_to_ask() -> None:
    assert sizes([], num_engines=0) == []
    assert sum(sizes(group(1, 8), num_engines=0)) == 8


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60),
    st.integers(min_value=0, max_value=5),
)
def test_nothing_is_lost_added_or_moved(asked: list[tuple[int, int]], num_engines: int) -> None:
    requests = [GenerateRequest(prompt_ids=(prompt,), seed=seed) for prompt, seed in asked]
    drawn = [
        (made.prompt_ids, made.seed + number)
        for made in bundle(requests, num_engines=num_engines)
        for number in range(made.num_samples)
    ]
    assert drawn == [(request.prompt_ids, request.seed) for request in requests]
