"""What engines are asked and what they answer comes over the wire as it was, to the last bit."""

import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts import frames
from grpo_runtime.rollouts.frames import MAGIC, Frame, encode_frame, encode_frames, read_frames
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, Segment, VersionSpan
from grpo_runtime.rollouts.wire import (
    EngineCall,
    completion_frame,
    episode_frame,
    logprobs_frame,
    read_completion,
    read_completions,
    read_logprobs,
    read_request,
    request_frame,
)

REQUESTS = [
    GenerateRequest(
        prompt_ids=(1, 151_643),
        seed=2**63 - 1,
        is_evaluation=True,
        max_tokens=3,
        num_group_tokens=1,
        session=0,
        stop=("x", "y"),
        own_parameters='{"temperature": 0}',
    ),
    GenerateRequest(prompt_ids=(), seed=0),
]
ROLLOUTS = [
    Rollout(
        prompt_ids=REQUESTS[0].prompt_ids,
        completion_ids=(0, 2**31 - 1),
        rollout_logprobs=(-0.5, -1.401298464324817e-45),
        versions=(VersionSpan(PolicyVersion(1, 2), 0, 1), VersionSpan(PolicyVersion(1, 3), 1, 2)),
        is_terminated=True,
        engine="engine-1",
    ),
    Rollout(
        prompt_ids=REQUESTS[1].prompt_ids,
        completion_ids=(7, 8, 9),
        rollout_logprobs=(-0.5, 0.0, -1.5),
        versions=(VersionSpan(PolicyVersion(1, 2), 0, 1), VersionSpan(PolicyVersion(1, 2), 2, 3)),
        is_terminated=False,
        engine="engine-1",
        loss_mask=(True, False, True),
        segments=(Segment("engine-0", 0, 1), Segment("engine-1", 1, 2)),
    ),
]


def sent(*frames: Frame) -> list[Frame]:
    """As the other end reads them."""
    return read_frames(encode_frames(frames))


def test_requests_come_as_they_were() -> None:
    assert [read_request(frame) for frame in sent(*map(request_frame, REQUESTS))] == REQUESTS


def test_completions_come_as_they_were_but_for_the_prompts_that_the_reader_knows() -> None:
    found = sent(*map(completion_frame, ROLLOUTS))
    assert read_completions(found, of=REQUESTS) == ROLLOUTS
    with pytest.raises(ValueError, match="shorter"):
        read_completions(found, of=REQUESTS[:1])


def test_no_engine_answers_with_an_episode_of_several_sequences() -> None:
    episode = replace(ROLLOUTS[0], branches=(ROLLOUTS[1],))
    with pytest.raises(AssertionError, match="written by episode_frame"):
        completion_frame(episode)
    [frame] = sent(episode_frame(episode))
    assert read_completion(frame, prompt_ids=REQUESTS[0].prompt_ids) == ROLLOUTS[0]


def test_a_call_of_an_engine_comes_as_it_was() -> None:
    for core, salt, num_so_far in ((None, None, 0), (1, "1.3", 1)):
        parameters = {"seed": 2**63 - 1, "top_p": 0.1, "stop": ["</s>"]}
        call = EngineCall((1, 2), parameters, core=core, cache_salt=salt, num_so_far=num_so_far)
        [frame] = sent(call.frame())
        assert EngineCall.of(frame) == call


@pytest.mark.parametrize("stop", ["text", None, {"a": 1}, [1], [["a"]], ["a"] * 65, ["a" * 4097]])
def test_texts_that_end_a_completion_are_a_list_with_a_bound(stop: Any) -> None:
    frame = EngineCall((1, 2), {"stop": stop}).frame()
    with pytest.raises((TypeError, ValueError), match="stop "):
        EngineCall.of(frame)


def test_a_cache_salt_that_is_no_text_makes_a_frame_no_call() -> None:
    frame = EngineCall((1, 2), {}).frame()
    frame.header["cache_salt"] = 3
    with pytest.raises(TypeError, match="salt 3 is no text"):
        EngineCall.of(frame)


@pytest.mark.parametrize("num_so_far", [-1, 3, "1", 1.0])
def test_no_more_tokens_than_there_are_belong_to_the_completion_of_a_call(num_so_far: object) -> None:
    frame = EngineCall((1, 2), {}).frame()
    frame.header["num_so_far"] = num_so_far
    with pytest.raises(ValueError, match="of 2 tokens cannot belong"):
        EngineCall.of(frame)


def test_what_was_handed_over_of_a_completion_comes_as_it_was_also_without_a_token() -> None:
    begun = replace(ROLLOUTS[0], is_terminated=False, is_aborted=True)
    nothing = replace(begun, completion_ids=(), rollout_logprobs=(), versions=())
    found = sent(*map(completion_frame, (begun, nothing)))
    assert read_completions(found, of=[REQUESTS[0]] * 2) == [begun, nothing]


def test_logprobs_that_are_no_numbers_come_too() -> None:
    [frame] = sent(logprobs_frame([-0.1, math.pi / -3, -math.inf]))
    assert read_logprobs(frame) == [-0.1, math.pi / -3, -math.inf]
    [frame] = sent(logprobs_frame([math.nan]))
    assert math.isnan(*read_logprobs(frame))


@pytest.mark.parametrize(
    "changed",
    [
        {"finish_reason": "error"},
        {"versions": [["1.3", 0]]},
        {"versions": [["latest", 0, 2]]},
        {"versions": 3},
        {"versions": [["1.3", 0.0, 2.0]]},
        {"segments": [["engine-1", 0]]},
        {"segments": [["engine-1", 0, "2"]]},
        {"token_ids": array("d", [1.0])},
        {"logprobs": array("B", [1, 1])},
    ],
)
def test_a_frame_that_is_no_completion_is_not_read_as_one(changed: Mapping[str, Any]) -> None:
    whole = completion_frame(ROLLOUTS[0])
    arrays = {name: value for name, value in changed.items() if isinstance(value, array)}
    header = {name: value for name, value in changed.items() if name not in arrays}
    [frame] = sent(Frame({**whole.header, **header}, {**whole.arrays, **arrays}))
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_completion(frame, prompt_ids=(1,))


def test_a_message_that_is_cut_or_goes_on_is_not_read() -> None:
    whole = encode_frame(completion_frame(ROLLOUTS[0]))
    for message in (whole[:-1], whole + whole[:9], b"\0" + whole, whole + b"\0"):
        with pytest.raises(ValueError, match="bytes are no frame"):
            read_frames(message)
    assert read_frames(b"") == []


def test_rubbish_is_refused_at_its_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not looked through for others: that takes time by the square of its length."""
    num_checked = 0

    def checksum(*parts: bytes) -> int:
        nonlocal num_checked
        num_checked += 1
        return 0

    to_the_end = b"".join(
        MAGIC + struct.pack("<III", 0, 16 * (1000 - place) - 16, 1) for place in range(1000)
    )
    monkeypatch.setattr(frames, "_checksum", checksum)
    with pytest.raises(ValueError, match="16000 of 16000 bytes are no frame"):
        read_frames(to_the_end)
    assert num_checked == 1
