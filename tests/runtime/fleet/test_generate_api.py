"""Answers of an engine that are not what they should be."""

import asyncio
import json
import math
import os
from copy import deepcopy
from typing import Any

import pytest

from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.fleet.bundle import Bundle
from grpo_runtime.fleet.errors import BadAnswerError
from grpo_runtime.fleet.generate_api import (
    AnswerLimits,
    answered_probe_error,
    parse_rollouts,
    probe_body,
    read_rollouts,
    sampling_body,
)
from grpo_runtime.rollout.interface import Probe

BUNDLE = Bundle(prompt_ids=(5, 6), seed=1, num_samples=1)
ANSWER: dict[str, Any] = {
    "choices": [
        {
            "index": 0,
            "token_ids": [7, 8],
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.5}]},
            "weight_versions": [{"version": "1.3", "start": 0, "end": 2}],
        }
    ]
}
LIMITS = AnswerLimits(max_tokens=4096, vocab_size=4096)
PROBE = Probe(token_ids=(4, 5, 6), logprobs=(-1.0, -2.0), tolerance=1e-4)

THREE_TOKENS = {"token_ids": [7, 8, 9], "logprobs": {"content": [{"logprob": -0.5}] * 3}}


def body(answer: dict[str, Any]) -> bytes:
    """As it comes over HTTP."""
    return json.dumps(answer).encode()


def changed(**fields: Any) -> dict[str, Any]:
    answer = deepcopy(ANSWER)
    answer["choices"][0].update(fields)
    return answer


def test_a_whole_answer_becomes_a_rollout() -> None:
    (rollout,) = parse_rollouts(body(ANSWER), bundle=BUNDLE, engine="pod-0", limits=LIMITS)
    assert rollout.completion_ids == (7, 8)
    assert rollout.rollout_logprobs == (-0.5, -1.5)
    assert str(rollout.versions[0].version) == "1.3"
    assert rollout.is_terminated
    (rollout,) = parse_rollouts(
        body(changed(finish_reason="length")), bundle=BUNDLE, engine="e", limits=LIMITS
    )
    assert not rollout.is_terminated


def test_the_completions_of_a_bundle_come_in_the_order_of_their_seeds() -> None:
    bundle = Bundle(prompt_ids=(5, 6), seed=1, num_samples=2)
    choices = [
        changed(index=1, token_ids=[1, 1])["choices"][0],
        changed(index=0, token_ids=[2, 2])["choices"][0],
    ]
    rollouts = parse_rollouts(body({"choices": choices}), bundle=bundle, engine="e", limits=LIMITS)
    assert [rollout.completion_ids for rollout in rollouts] == [(2, 2), (1, 1)]
    assert sampling_body(bundle, sampling=SamplingSpec(max_tokens=4))["sampling_params"]["n"] == 2
    for wrong in (choices[:1], [choices[0], choices[0]], [*choices, choices[0]]):
        with pytest.raises(BadAnswerError, match="of 2 completions"):
            parse_rollouts(body({"choices": wrong}), bundle=bundle, engine="e", limits=LIMITS)


def spans(*ends: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"version": f"1.{index}", "start": start, "end": end} for index, (start, end) in enumerate(ends)]


def test_every_span_of_a_completion_keeps_its_version_and_its_place() -> None:
    answer = changed(weight_versions=spans((0, 1), (1, 2)))
    (rollout,) = parse_rollouts(body(answer), bundle=BUNDLE, engine="e", limits=LIMITS)
    assert [(str(span.version), span.start, span.end) for span in rollout.versions] == [
        ("1.0", 0, 1),
        ("1.1", 1, 2),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": ANSWER["choices"] * 2},
        changed(finish_reason="abort"),
        changed(finish_reason=None),
        changed(token_ids=[]),
        changed(logprobs=None),
        changed(logprobs={"content": [{"logprob": -0.5}]}),
        changed(weight_versions=None),
        changed(weight_versions=[{"version": "default", "start": 0, "end": 2}]),
        changed(weight_versions=[{"version": "1.3", "start": 0, "end": 1}]),
        changed(weight_versions=[{"version": "1.3", "start": 1, "end": 2}]),
        changed(**THREE_TOKENS, weight_versions=spans((0, 1), (2, 3))),
        changed(**THREE_TOKENS, weight_versions=spans((0, 2), (1, 3))),
    ],
)
def test_an_answer_with_anything_missing_is_no_rollout(answer: dict[str, Any]) -> None:
    with pytest.raises(BadAnswerError):
        parse_rollouts(body(answer), bundle=BUNDLE, engine="pod-0", limits=LIMITS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"logprobs": {"content": [{"logprob": math.nan}, {"logprob": -1.0}]}}, "logprobs.content.0"),
        ({"logprobs": {"content": [{"logprob": -math.inf}, {"logprob": -1.0}]}}, "logprobs.content.0"),
        ({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": 3.0}]}}, "logprobs.content.1"),
        ({"token_ids": [-5, 8]}, "token_ids.0"),
        ({"token_ids": [2**40, 8]}, "token_ids.0"),
        ({"token_ids": [7, 4096]}, "sent token 4096 of a vocabulary of 4096"),
    ],
)
def test_what_no_engine_can_sample_is_no_rollout(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadAnswerError, match=said):
        parse_rollouts(body(changed(**fields)), bundle=BUNDLE, engine="pod-0", limits=LIMITS)


def test_no_completion_is_longer_than_it_was_asked_for() -> None:
    for limit, is_within in ((2, True), (1, False)):
        limits = AnswerLimits(max_tokens=limit)
        if is_within:
            assert len(parse_rollouts(body(ANSWER), bundle=BUNDLE, engine="e", limits=limits)) == 1
        else:
            with pytest.raises(BadAnswerError, match="sent 2 tokens where at most 1 were asked for"):
                parse_rollouts(body(ANSWER), bundle=BUNDLE, engine="e", limits=limits)


def test_an_answer_in_which_every_token_is_wrong_is_told_in_one_line() -> None:
    answer = changed(token_ids=[-1] * 1000, logprobs={"content": [{"logprob": -1.0}] * 1000})
    with pytest.raises(BadAnswerError, match=r"token_ids\.0: .*, and 999 more") as caught:
        parse_rollouts(body(answer), bundle=BUNDLE, engine="e", limits=LIMITS)
    assert len(str(caught.value)) < 200


def test_a_request_leaves_nothing_to_the_models_own_defaults() -> None:
    request = sampling_body(BUNDLE, sampling=SamplingSpec(temperature=0.7, max_tokens=9))
    parameters = request["sampling_params"]
    assert parameters == parameters | {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    wanted = {"seed": 1, "temperature": 0.7, "max_tokens": 9, "n": 1, "logprobs": 0}
    assert parameters == parameters | wanted
    assert request["token_ids"] == [5, 6]


def probe_answer(first: float, second: float) -> dict[str, Any]:
    return {"prompt_logprobs": [None, {"5": {"logprob": first}}, {"6": {"logprob": second}}]}


def test_the_error_of_a_probe_is_the_mean_difference() -> None:
    assert probe_body(PROBE)["token_ids"] == [4, 5, 6]
    assert answered_probe_error(body(probe_answer(-1.0, -2.25)), probe=PROBE, engine="e") == pytest.approx(
        0.125
    )


def test_logprobs_that_are_not_numbers_fail_every_tolerance() -> None:
    for values in ((math.nan, -2.0), (-1.0, math.nan)):
        error = answered_probe_error(body(probe_answer(*values)), probe=PROBE, engine="e")
        assert not error <= PROBE.tolerance


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"prompt_logprobs": None},
        {"prompt_logprobs": [None, {"5": {"logprob": -1.0}}]},
        {"prompt_logprobs": [None, {"5": {"logprob": -1.0}}, {"9": {"logprob": -1.0}}]},
        {"prompt_logprobs": [None, None, {"6": {"logprob": -1.0}}]},
    ],
)
def test_a_probe_that_is_not_answered_in_full_is_no_proof(answer: dict[str, Any]) -> None:
    with pytest.raises(BadAnswerError):
        answered_probe_error(body(answer), probe=PROBE, engine="pod-0")


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"3", b'{"choices": [', b"\xff\xfe{}", b'{"a":' + b"[" * 200_000]
)
def test_what_is_no_json_object_is_a_bad_answer(answer: bytes) -> None:
    with pytest.raises(BadAnswerError):
        parse_rollouts(answer, bundle=BUNDLE, engine="pod-0", limits=LIMITS)
    with pytest.raises(BadAnswerError):
        answered_probe_error(answer, probe=PROBE, engine="pod-0")


def large_answer(*, num_samples: int, num_tokens: int) -> dict[str, Any]:
    """As vLLM writes it: each token with its rank, and once more among the likeliest."""

    def token(index: int) -> dict[str, Any]:
        fields = {"token_id": index, "logprob": -index / num_tokens, "rank": 1}
        return fields | {"top_logprobs": [fields]}

    (choice,) = changed(
        token_ids=list(range(num_tokens)),
        logprobs={"content": [token(index) for index in range(num_tokens)]},
        weight_versions=spans((0, num_tokens)),
    )["choices"]
    return {"choices": [choice | {"index": index} for index in range(num_samples)]}


async def test_a_large_answer_does_not_hold_up_the_event_loop() -> None:
    num_samples, num_tokens = 16, 4096
    answer = body(large_answer(num_samples=num_samples, num_tokens=num_tokens))
    bundle = Bundle(prompt_ids=(5, 6), seed=1, num_samples=num_samples)
    reading = asyncio.ensure_future(read_rollouts(answer, bundle=bundle, engine="e", limits=LIMITS))
    num_ticks = 0
    while not reading.done():
        num_ticks += 1
        # gives the interpreter to whoever waits for it, which the other thread does after each of its turns
        await asyncio.sleep(0)
        os.sched_yield()
    # in a thread without the hook, which is one call of C, there are a few before and after it
    assert num_ticks > 10
    rollouts = reading.result()
    assert [rollout.completion_ids for rollout in rollouts] == [tuple(range(num_tokens))] * num_samples
    assert rollouts[0].rollout_logprobs == tuple(-index / num_tokens for index in range(num_tokens))
