"""Answers of an engine that are not what they should be."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.fleet.engine_calls import (
    AnswerLimits,
    BadAnswerError,
    Bundle,
    answered_probe_error,
    joined,
    num_recomputed,
    probe_call,
    read_rollouts,
    require_versions,
    sampling_call,
)
from grpo_runtime.rollouts.frames import Frame, encode_frame, encode_frames
from grpo_runtime.rollouts.interface import Probe, Rollout, Segment, VersionSpan
from grpo_runtime.rollouts.wire import completion_frame, logprobs_frame

BUNDLE = Bundle(prompt_ids=(5, 6), seed=1, num_samples=1)
HEADER = {"versions": [["1.3", 0, 2]], "finish_reason": "stop", "engine": "itself"}
ARRAYS = {"token_ids": array("i", [7, 8]), "logprobs": array("f", [-0.5, -1.5])}
LIMITS = AnswerLimits(max_tokens=4096, vocab_size=4096)
PROBE = Probe(token_ids=(4, 5, 6), logprobs=(-1.0, -2.0), tolerance=1e-4)


def completion(header: Mapping[str, Any] | None = None, **arrays: Any) -> Frame:
    """One that is whole but for what is said."""
    return Frame(HEADER | (header or {}), ARRAYS | arrays)


def read(*frames: Frame, bundle: Bundle = BUNDLE, limits: AnswerLimits = LIMITS) -> list[Rollout]:
    return read_rollouts(encode_frames(frames), bundle=bundle, engine="pod-0", limits=limits)


def test_a_whole_answer_becomes_a_rollout() -> None:
    assert read(completion()) == [
        Rollout(
            prompt_ids=(5, 6),
            completion_ids=(7, 8),
            rollout_logprobs=(-0.5, -1.5),
            versions=(VersionSpan(PolicyVersion(1, 3), 0, 2),),
            is_terminated=True,
            # as the fleet calls it
            engine="pod-0",
        )
    ]
    (rollout,) = read(completion({"finish_reason": "length"}))
    assert not rollout.is_terminated


def test_what_is_sampled_behind_what_was_handed_over_is_one_completion() -> None:
    begun, rest = read(completion({"finish_reason": "abort"}))[0], read(completion())[0]
    newer = replace(rest, versions=(VersionSpan(PolicyVersion(1, 4), 0, 2),), engine="pod-1")
    twice = joined(joined(replace(begun, sampling_seconds=2.0), newer), replace(newer, sampling_seconds=3.0))
    assert joined(None, rest) is rest
    assert twice == Rollout(
        prompt_ids=(5, 6),
        completion_ids=(7, 8) * 3,
        rollout_logprobs=(-0.5, -1.5) * 3,
        versions=(VersionSpan(PolicyVersion(1, 3), 0, 2), VersionSpan(PolicyVersion(1, 4), 2, 6)),
        is_terminated=True,
        engine="pod-0, pod-1",
        segments=(Segment("pod-0", 0, 2), Segment("pod-1", 2, 4), Segment("pod-1", 4, 6)),
    )
    assert twice.sampling_seconds == 5.0


def test_an_answer_is_as_long_as_its_bundle() -> None:
    bundle = Bundle(prompt_ids=(5, 6), seed=1, num_samples=2)
    first, second = completion(), completion(token_ids=array("i", [1, 1]))
    rollouts = read(first, second, bundle=bundle)
    assert [rollout.completion_ids for rollout in rollouts] == [(7, 8), (1, 1)]
    assert sampling_call(bundle, sampling=SamplingSpec(max_tokens=4)).parameters["n"] == 2
    for wrong in ((), (first,), (first, first, second)):
        with pytest.raises(BadAnswerError, match=f"sent {len(wrong)} of 2 completions"):
            read(*wrong, bundle=bundle)


def test_every_span_of_a_completion_keeps_its_version_and_its_place() -> None:
    (rollout,) = read(completion({"versions": [["1.0", 0, 1], ["1.1", 1, 2]]}))
    assert [(str(span.version), span.start, span.end) for span in rollout.versions] == [
        ("1.0", 0, 1),
        ("1.1", 1, 2),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        Frame({}, {}),
        Frame(HEADER, {}),
        Frame({}, ARRAYS),
        completion({"finish_reason": "error"}),
        completion({"finish_reason": None}),
        completion(token_ids=array("i"), logprobs=array("f")),
        completion({"versions": []}, token_ids=array("i"), logprobs=array("f")),
        completion(token_ids=array("f", [7, 8])),
        completion(logprobs=array("f", [-0.5])),
        completion(loss_mask=array("B", [1, 0])),
        completion({"segments": [["another", 0, 1], ["itself", 1, 2]]}),
        completion({"versions": None}),
        completion({"versions": []}),
        completion({"versions": [["default", 0, 2]]}),
        completion({"versions": [["1.3", 0, 1]]}),
        completion({"versions": [["1.3", 1, 2]]}),
        completion({"versions": [["1.3", 0, 1], ["1.4", 0, 2]]}),
        completion({"versions": [["1.3", 0, 0], ["1.4", 1, 2]]}),
    ],
)
def test_an_answer_with_anything_missing_is_no_rollout(frame: Frame) -> None:
    with pytest.raises(BadAnswerError, match="engine pod-0 sent"):
        read(frame)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"logprobs": array("f", [math.nan, -1.0])}, "sent a logprob of nan"),
        ({"logprobs": array("f", [-math.inf, -1.0])}, "sent a logprob of -inf"),
        ({"logprobs": array("f", [-1.0, 3.0])}, "sent a logprob of 3"),
        ({"token_ids": array("i", [-5, 8])}, "sent token -5"),
        ({"token_ids": array("i", [7, 4096])}, "sent token 4096 of a vocabulary of 4096"),
    ],
)
def test_what_no_engine_can_sample_is_no_rollout(arrays: Mapping[str, Any], said: str) -> None:
    with pytest.raises(BadAnswerError, match=said):
        read(completion(**arrays))


def test_a_logprob_may_be_above_0_by_as_much_as_float32_rounds() -> None:
    assert read(completion(logprobs=array("f", [1e-6, 0.0])))


def test_no_completion_is_longer_than_it_was_asked_for() -> None:
    assert read(completion(), limits=AnswerLimits(max_tokens=2))
    with pytest.raises(BadAnswerError, match="sent 2 tokens where at most 1 were asked for"):
        read(completion(), limits=AnswerLimits(max_tokens=1))


def test_what_an_engine_may_send_fits_into_the_limit_of_an_answer() -> None:
    """Also where every token was sampled with other weights."""
    num_tokens = 1000
    spans = tuple(VersionSpan(PolicyVersion(99, step), step, step + 1) for step in range(num_tokens))
    rollout = Rollout((1,), (1 << 30,) * num_tokens, (-1.0,) * num_tokens, spans, True, engine="e" * 253)
    limits = AnswerLimits(max_tokens=num_tokens)
    longest = encode_frame(completion_frame(rollout)) * 64
    assert len(longest) < limits.max_bytes(num_samples=64)


def test_a_request_leaves_nothing_to_the_models_own_defaults() -> None:
    call = sampling_call(BUNDLE, sampling=SamplingSpec(temperature=0.7, max_tokens=9))
    parameters = call.parameters
    assert parameters == {**parameters, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    wanted = {"seed": 1, "temperature": 0.7, "max_tokens": 9, "n": 1, "logprobs": 0}
    assert parameters == {**parameters, **wanted}
    assert call.token_ids == (5, 6)


def probe_error_of(*logprobs: float) -> float:
    answer = encode_frame(logprobs_frame(logprobs))
    return answered_probe_error(answer, probe=PROBE, engine="pod-0")


def test_the_error_of_a_probe_is_the_mean_difference() -> None:
    assert probe_call(PROBE, core=1).token_ids == (4, 5, 6)
    assert probe_error_of(-1.0, -2.25) == pytest.approx(0.125)


def test_logprobs_that_are_not_numbers_fail_every_tolerance() -> None:
    for values in ((math.nan, -2.0), (-1.0, math.nan), (-math.inf, -2.0)):
        assert not probe_error_of(*values) <= PROBE.tolerance


def test_a_probe_that_is_not_answered_in_full_is_no_proof() -> None:
    for logprobs in ((), (-1.0,), (-1.0, -2.0, -3.0)):
        with pytest.raises(BadAnswerError, match=f"sent {len(logprobs)} logprobs for a probe of 2"):
            probe_error_of(*logprobs)
    for answer in (b"", encode_frame(Frame({}, {}))):
        with pytest.raises(BadAnswerError, match="sent no logprobs"):
            answered_probe_error(answer, probe=PROBE, engine="pod-0")


WHOLE = encode_frame(completion())


@pytest.mark.parametrize(
    "answer", [b"<html>", b"{}", WHOLE[:-1], WHOLE + b"\0", WHOLE.replace(b"stop", b"stoq"), WHOLE[1:]]
)
def test_what_is_no_frame_is_a_bad_answer(answer: bytes) -> None:
    with pytest.raises(BadAnswerError, match="engine pod-0 sent an answer that is not understood"):
        read_rollouts(answer, bundle=BUNDLE, engine="pod-0", limits=LIMITS)
    with pytest.raises(BadAnswerError):
        answered_probe_error(answer, probe=PROBE, engine="pod-0")


def rollout_of(*steps: int) -> Rollout:
    """One whose tokens were sampled with the weights of these steps, after a prompt of two tokens."""
    spans = [VersionSpan(PolicyVersion(1, step), index, index + 1) for index, step in enumerate(steps)]
    ids = tuple(range(len(steps)))
    return Rollout((5, 6), ids, (-1.0,) * len(steps), tuple(spans), is_terminated=True, engine="pod-0")


ALLOWED = [PolicyVersion(1, step) for step in (3, 5, 6)]


@pytest.mark.parametrize("steps", [(3,), (3, 3, 5), (3, 6), (6, 6)])
def test_weights_may_change_within_a_completion_to_newer_ones_that_are_allowed(
    steps: tuple[int, ...],
) -> None:
    require_versions([rollout_of(*steps)], allowed=ALLOWED)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((2, 3), "engine pod-0 sampled with weights 1.2, not 1.3 to 1.6"),
        ((3, 4), "sampled with weights 1.4, not 1.3 to 1.6"),
        ((6, 7), "sampled with weights 1.7, not 1.3 to 1.6"),
        ((3, 5, 3), "sampled with weights 1.3 after 1.5"),
    ],
    ids=["older", "never given", "not yet given", "back again"],
)
def test_other_weights_than_those_allowed_and_older_ones_after_newer_ones_make_an_answer_bad(
    steps: tuple[int, ...], said: str
) -> None:
    with pytest.raises(BadAnswerError, match=said):
        require_versions([rollout_of(3), rollout_of(*steps)], allowed=ALLOWED)


def test_at_each_change_of_weights_the_prompt_and_the_tokens_so_far_are_computed_again() -> None:
    assert num_recomputed(rollout_of(3)) == 0
    changed_twice = replace(
        rollout_of(*[3] * 9),
        versions=tuple(
            VersionSpan(version, start, end)
            for version, start, end in zip(ALLOWED, (0, 4, 7), (4, 7, 9), strict=True)
        ),
    )
    assert num_recomputed(changed_twice) == (2 + 4) + (2 + 7)
