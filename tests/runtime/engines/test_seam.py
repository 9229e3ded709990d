"""A completion that was handed over ends at the same token as one that was not, with vLLM's own search for
the texts that end it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as SplitBytes
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer, check_stop_strings

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.vllm.seam import ended_at_stop, of_whole_characters
from grpo_runtime.rollouts.interface import Rollout, VersionSpan
from grpo_runtime.rollouts.wire import EngineCall

PROMPT = (0,)
TEXTS = st.text("ab", min_size=1, max_size=3)
TOKENS = st.lists(TEXTS, min_size=1, max_size=12)


class Pieces:
    """A tokenizer whose token i is the bytes number i."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return b"".join(self.pieces[token] for token in token_ids).decode(errors="replace")


def sampled(pieces: Sequence[str], *, start: int, stops: Sequence[str]) -> tuple[int, bool]:
    """Behind which token vLLM stops, that begins with token `start`, and whether a text ended it."""
    text = ""
    for end, piece in enumerate(pieces[start:], start=start + 1):
        text += piece
        if check_stop_strings(text, len(piece), list(stops), include_in_output=False) is not None:
            return end, True
    return len(pieces), False


def rollout_of_tokens(start: int, end: int, *, is_terminated: bool = False) -> Rollout:
    """Its last token is of newer weights."""
    num = end - start
    old, new = PolicyVersion(1, 0), PolicyVersion(1, 1)
    return Rollout(
        PROMPT,
        tuple(range(start, end)),
        tuple(-1.0 - place for place in range(num)),
        (VersionSpan(old, 0, num - 1), VersionSpan(new, num - 1, num)),
        is_terminated,
        "a",
    )


def across(pieces: Sequence[str | bytes], *, seam: int, stops: Sequence[str], rollout: Rollout) -> Rollout:
    """What becomes of a completion behind token `seam`, where it was handed over."""
    call = EngineCall((*PROMPT, *range(seam)), {"stop": list(stops)}, num_so_far=seam)
    return ended_at_stop(rollout, call=call, decoder=Pieces(pieces))


@given(pieces=TOKENS, stops=st.lists(TEXTS, min_size=1, max_size=3), data=st.data())
def test_a_completion_ends_where_it_would_have_ended_without_a_seam(
    pieces: list[str], stops: list[str], data: st.DataObject
) -> None:
    whole = sampled(pieces, start=0, stops=stops)
    seam = data.draw(st.integers(1, max(1, whole[0] - 1)))
    if seam < whole[0]:
        # one call, with the texts as they are
        end, is_terminated = sampled(pieces, start=seam, stops=stops)
        rollout = rollout_of_tokens(seam, end, is_terminated=is_terminated)
        found = across(pieces, seam=seam, stops=stops, rollout=rollout)
        assert (seam + len(found.completion_ids), found.is_terminated) == whole


@pytest.mark.parametrize("is_aborted", [False, True])
@pytest.mark.parametrize(
    ("pieces", "stops", "num_left"),
    [
        (["x", "\n", "\n", "y", "z"], ["\n\n"], 1),
        (["x", "\n", "a", "\n", "\n"], ["\na\n", "\na\n\n"], 2),
        (["x", "\n", "a\n\nb", "z"], ["\na"], 1),
        (["x", b"\xc3", b"\xa9", "!", "z"], ["x\u00e9"], 1),
        (["x", b"\xc3", b"\xa9", "!", "z"], ["\u00e9!"], 2),
        (["x", "y", b"\xe2", b"\x82", b"\xac", "z"], ["y\u20ac"], 3),
    ],
    ids=[
        "an empty line",
        "the first of two",
        "within a token",
        "with a character across the seam",
        "that begins with a character across the seam",
        "with a character of several tokens",
    ],
)
def test_a_text_across_the_seam_ends_a_completion_with_the_token_that_completes_it(
    pieces: list[str | bytes], stops: list[str], num_left: int, *, is_aborted: bool
) -> None:
    """Also one that is handed over once more."""
    rollout = replace(rollout_of_tokens(2, len(pieces)), is_aborted=is_aborted)
    assert across(pieces, seam=2, stops=stops, rollout=rollout) == Rollout(
        PROMPT,
        rollout.completion_ids[:num_left],
        rollout.rollout_logprobs[:num_left],
        (VersionSpan(PolicyVersion(1, 0), 0, num_left),),
        is_terminated=True,
        engine="a",
    )


@pytest.mark.parametrize("is_aborted", [False, True])
def test_what_is_no_rest_of_a_text_leaves_a_completion_as_one_call_made_it(*, is_aborted: bool) -> None:
    """A newline further on is no rest of an empty line, and the prompt is no part of a completion."""
    lines = ["\n", "\n", "two", "\n", "three", "\n", "four"]
    rollout = replace(rollout_of_tokens(2, 7), is_aborted=is_aborted)
    for num_so_far, stops in ((1, ["\n\n"]), (1, ["\n\nt"]), (1, []), (0, ["\nt"])):
        call = EngineCall((0, 1), {"stop": stops}, num_so_far=num_so_far)
        assert ended_at_stop(rollout, call=call, decoder=Pieces(lines)) is rollout
    nothing = replace(rollout, completion_ids=(), rollout_logprobs=(), versions=(), is_aborted=True)
    assert across(lines, seam=1, stops=["\n\n"], rollout=nothing) is nothing


@pytest.fixture(scope="module")
def of_bytes() -> Any:
    """A tokenizer with a token for each byte."""
    tokenizer = Tokenizer(BPE({byte: number for number, byte in enumerate(SplitBytes.alphabet())}, []))
    tokenizer.pre_tokenizer = cast("Any", SplitBytes(add_prefix_space=False))
    tokenizer.decoder = cast("Any", ByteLevel())
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_vllm_finds_no_text_of_the_prompt_behind_what_is_handed_over(of_bytes: Any) -> None:
    """It would, where characters of several tokens are handed over in part."""
    prompt, completion = (of_bytes(text)["input_ids"] for text in ("2 lines\n\n", "\u00e9\u20ac\U0001f600."))
    parameters = {"stop": ["\n\n"]}
    ends_wrongly, handed_over = [], []
    for num_sampled in range(1, len(completion) + 1):
        rollout = replace(rollout_of_tokens(0, num_sampled), is_aborted=True)
        rollout = replace(rollout, completion_ids=tuple(completion[:num_sampled]))
        whole = of_whole_characters(rollout, call=EngineCall(prompt, parameters), decoder=of_bytes)
        num_tokens = len(whole.completion_ids)
        assert whole.is_aborted and len(whole.rollout_logprobs) == num_tokens
        handed_over.append(num_tokens)
        assert not vllm_stops(of_bytes, prompt + completion[:num_tokens], completion[num_tokens:])
        ends_wrongly.append(vllm_stops(of_bytes, prompt + completion[:num_sampled], completion[num_sampled:]))
    assert handed_over == [0, 2, 2, 2, 5, 5, 5, 5, 9, 10]
    assert any(ends_wrongly)


def vllm_stops(tokenizer: Any, prompt: list[int], sampled_ids: list[int]) -> bool:
    request: Any = SimpleNamespace(
        sampling_params=SamplingParams(stop=["\n\n"]),
        prompt_token_ids=prompt,
        prompt_embeds=None,
        request_id="a",
    )
    found = IncrementalDetokenizer.from_new_request(tokenizer, request)
    return found.update(sampled_ids, stop_terminated=False) is not None


def test_what_has_ended_and_bytes_that_are_no_text_stay_as_they_are() -> None:
    pieces = Pieces(["x", b"\xc3", *[b"\xff"] * 5])
    for end, is_aborted, stops in ((2, False, ["y"]), (2, True, []), (7, True, ["y"])):
        rollout = replace(rollout_of_tokens(0, end), is_aborted=is_aborted)
        call = EngineCall((0,), {"stop": stops})
        assert of_whole_characters(rollout, call=call, decoder=pieces) is rollout
