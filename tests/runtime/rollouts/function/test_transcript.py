"""A completion of several turns grows turn by turn, and says whether it was cut."""

from dataclasses import replace

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts.function.transcript import Transcript
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, Segment, VersionSpan

REQUEST = GenerateRequest((1, 2), seed=7)
FIRST, SECOND = PolicyVersion(1, 3), PolicyVersion(1, 4)


def turn(*ids: int, version: PolicyVersion = FIRST, is_terminated: bool = True, engine: str = "a") -> Rollout:
    logprobs = tuple(-float(token) for token in ids)
    return Rollout(
        REQUEST.prompt_ids, ids, logprobs, (VersionSpan(version, 0, len(ids)),), is_terminated, engine
    )


def test_what_was_sampled_and_what_was_added_are_told_apart_with_versions_at_their_places() -> None:
    transcript = Transcript(REQUEST, max_tokens=20, max_turns=None)
    transcript.take(turn(5, 6))
    transcript.add([8, 8, 8])
    transcript.take(turn(9, version=SECOND, engine="b"))
    assert transcript.num_turns == 2
    assert transcript.rollout() == Rollout(
        prompt_ids=(1, 2),
        completion_ids=(5, 6, 8, 8, 8, 9),
        rollout_logprobs=(-5.0, -6.0, 0.0, 0.0, 0.0, -9.0),
        versions=(VersionSpan(FIRST, 0, 2), VersionSpan(SECOND, 5, 6)),
        is_terminated=True,
        engine="a, b",
        loss_mask=(True, True, False, False, False, True),
    )


def test_a_turn_that_was_handed_over_has_its_segments_at_its_place() -> None:
    transcript = Transcript(REQUEST, max_tokens=20, max_turns=None)
    transcript.take(turn(5, 6))
    transcript.add([8, 8, 8])
    segments = (Segment("b", 0, 1), Segment("c", 1, 2))
    transcript.take(replace(turn(9, 10, engine="b, c"), segments=segments))
    found = transcript.rollout()
    assert found.segments == (Segment("b", 5, 6), Segment("c", 6, 7))
    assert found.engine == "a, b, c"


@pytest.mark.parametrize("is_terminated", [True, False])
def test_it_is_cut_when_its_last_turn_is(is_terminated: bool) -> None:
    transcript = Transcript(REQUEST, max_tokens=20, max_turns=None)
    transcript.take(turn(5, is_terminated=not is_terminated))
    transcript.take(turn(6, is_terminated=is_terminated))
    assert transcript.rollout().is_terminated is is_terminated


def test_it_is_cut_when_what_is_added_has_no_room_or_no_turn_is_left() -> None:
    full = Transcript(REQUEST, max_tokens=3, max_turns=None)
    full.take(turn(5, 6))
    full.add([8, 8])
    assert full.rollout().completion_ids == (5, 6, 8)
    assert not full.rollout().is_terminated
    assert full.next_turn(None) is None

    ended = Transcript(REQUEST, max_tokens=20, max_turns=1)
    ended.take(turn(5))
    assert ended.rollout().is_terminated
    assert ended.next_turn(None) is None
    assert not ended.rollout().is_terminated


def test_the_next_turn_goes_on_behind_all_tokens_in_the_room_that_is_left_with_a_seed_of_its_own() -> None:
    transcript = Transcript(REQUEST, max_tokens=10, max_turns=None)
    first = transcript.next_turn(None)
    assert first is not None and (first.seed, first.max_tokens) == (7, 10)
    transcript.take(turn(5, 6))
    asked = [transcript.next_turn(limit) for limit in (None, 3, 100)]
    assert [request and request.max_tokens for request in asked] == [8, 3, 8]
    assert asked[0] is not None and asked[0].prompt_ids == (1, 2, 5, 6)
    assert asked[0].seed != 7
