"""Answers of an engine that are not what they should be."""

import math
from copy import deepcopy
from typing import Any

import pytest

from grpo_runtime.fleet.bundle import Bundle
from grpo_runtime.fleet.errors import BadAnswerError
from grpo_runtime.fleet.generate_api import (
    answered_probe_error,
    parse_rollouts,
    probe_body,
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
PROBE = Probe(token_ids=(4, 5, 6), logprobs=(-1.0, -2.0), tolerance=1e-4)

THREE_TOKENS = {"token_ids": [7, 8, 9], "logprobs": {"content": [{"logprob": -0.5}] * 3}}


def changed(**fields: Any) -> dict[str, Any]:
    answer = deepcopy(ANSWER)
    answer["choices"][0].update(fields)
    return answer


def test_a_whole_answer_becomes_a_rollout() -> None:
    (rollout,) = parse_rollouts(ANSWER, bundle=BUNDLE, engine="pod-0")
    assert rollout.completion_ids == (7, 8)
    assert rollout.rollout_logprobs == (-0.5, -1.5)
    assert str(rollout.versions[0].version) == "1.3"
    assert rollout.is_terminated
    (rollout,) = parse_rollouts(changed(finish_reason="length"), bundle=BUNDLE, engine="e")
    assert not rollout.is_terminated


def test_the_completions_of_a_bundle_come_in_the_order_of_their_seeds() -> None:
    bundle = Bundle(prompt_ids=(5, 6), seed=1, num_samples=2)
    choices = [
        changed(index=1, token_ids=[1, 1])["choices"][0],
        changed(index=0, token_ids=[2, 2])["choices"][0],
    ]
    rollouts = parse_rollouts({"choices": choices}, bundle=bundle, engine="e")
    assert [rollout.completion_ids for rollout in rollouts] == [(2, 2), (1, 1)]
    assert sampling_body(bundle, temperature=1.0, max_tokens=4)["sampling_params"]["n"] == 2
    for wrong in (choices[:1], [choices[0], choices[0]], [*choices, choices[0]]):
        with pytest.raises(BadAnswerError, match="of 2 completions"):
            parse_rollouts({"choices": wrong}, bundle=bundle, engine="e")


def spans(*ends: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"version": f"1.{index}", "start": start, "end": end} for index, (start, end) in enumerate(ends)]


def test_every_span_of_a_completion_keeps_its_version_and_its_place() -> None:
    answer = changed(weight_versions=spans((0, 1), (1, 2)))
    (rollout,) = parse_rollouts(answer, bundle=BUNDLE, engine="e")
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
        parse_rollouts(answer, bundle=BUNDLE, engine="pod-0")


def test_a_request_leaves_nothing_to_the_models_own_defaults() -> None:
    body = sampling_body(BUNDLE, temperature=0.7, max_tokens=9)
    assert (
        body["sampling_params"] | {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        == (body["sampling_params"])
    )
    wanted = {"seed": 1, "temperature": 0.7, "max_tokens": 9, "n": 1, "logprobs": 0}
    assert body["sampling_params"] == body["sampling_params"] | wanted
    assert body["token_ids"] == [5, 6]


def probe_answer(first: float, second: float) -> dict[str, Any]:
    return {"prompt_logprobs": [None, {"5": {"logprob": first}}, {"6": {"logprob": second}}]}


def test_the_error_of_a_probe_is_the_mean_difference() -> None:
    assert probe_body(PROBE)["token_ids"] == [4, 5, 6]
    assert answered_probe_error(probe_answer(-1.0, -2.25), probe=PROBE, engine="e") == pytest.approx(0.125)


def test_logprobs_that_are_not_numbers_fail_every_tolerance() -> None:
    for values in ((math.nan, -2.0), (-1.0, math.nan)):
        error = answered_probe_error(probe_answer(*values), probe=PROBE, engine="e")
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
        answered_probe_error(answer, probe=PROBE, engine="pod-0")
