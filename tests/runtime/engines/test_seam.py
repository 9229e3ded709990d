"""A completion that was handed over ends at the same token as one that was not, with vLLM's own search for
the texts that end it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.engine.detokenizer import check_stop_strings

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.vllm.seam import Seam
from grpo_runtime.rollouts.interface import Rollout, VersionSpan
from grpo_runtime.rollouts.wire import EngineCall

PROMPT = (0,)
MAX_MODEL_LEN = 64
TEXTS = st.text("ab", min_size=1, max_size=3)
TOKENS = st.lists(TEXTS, min_size=1, max_size=12)


class Pieces:
    """A tokenizer whose token i is the piece of text number i."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.pieces[token] for token in token_ids)


def sampled(pieces: Sequence[str], *, start: int, stops: Sequence[str]) -> tuple[int, Any]:
    """Behind which token vLLM stops, that begins with token `start`, and its output."""
    text = ""
    for end, piece in enumerate(pieces[start:], start=start + 1):
        text += piece
        found = check_stop_strings(text, len(piece), list(stops), include_in_output=False)
        if found is not None:
            stop, length = found
            return end, SimpleNamespace(text=text[:length], stop_reason=stop)
    return len(pieces), SimpleNamespace(text=text, stop_reason=None)


def rollout_of_tokens(start: int, end: int, *, is_terminated: bool) -> Rollout:
    num = end - start
    return Rollout(
        PROMPT,
        tuple(range(start, end)),
        (-1.0,) * num,
        (VersionSpan(PolicyVersion(1, 0), 0, num),),
        is_terminated,
        "a",
    )


def end_across(pieces: Sequence[str], *, seam: int, stops: Sequence[str]) -> tuple[int, bool]:
    """Behind which token a completion ends that was handed over behind token `seam`, and whether a text ended
    it."""
    decoder, start = Pieces(pieces), seam
    while True:
        parameters = {"stop": list(stops), "max_tokens": len(pieces) - start}
        call = EngineCall((*PROMPT, *range(start)), parameters, num_begun=start)
        found = Seam.of(call, decoder=decoder, max_model_len=MAX_MODEL_LEN)
        asked = found.with_stops(call.parameters)["stop"]
        end, output = sampled(pieces, start=start, stops=asked)
        is_terminated = output.stop_reason is not None
        rollout = found.checked(rollout_of_tokens(start, end, is_terminated=is_terminated), output)
        if not rollout.is_aborted:
            return end, rollout.is_terminated
        # else nothing could be asked for any more
        assert start < end < len(pieces)
        start = end


@given(pieces=TOKENS, stops=st.lists(TEXTS, min_size=1, max_size=3), data=st.data())
def test_a_completion_ends_where_it_would_have_ended_without_a_seam(
    pieces: list[str], stops: list[str], data: st.DataObject
) -> None:
    whole, output = sampled(pieces, start=0, stops=stops)
    seam = data.draw(st.integers(1, max(1, whole - 1)))
    if seam < whole:
        assert end_across(pieces, seam=seam, stops=stops) == (whole, output.stop_reason is not None)


@pytest.mark.parametrize(
    ("pieces", "seam", "end"),
    [
        (["x", "\n", "\n", "y"], 2, 3),
        (["x", "\n", "y", "\n", "z"], 2, 5),
        (["x", "\n", "y\nz\n\n", "z"], 2, 3),
    ],
    ids=["across the seam", "further on", "further on, and a whole one in the same token"],
)
def test_an_empty_line_ends_a_completion_where_a_newline_was_its_last_token(
    pieces: list[str], seam: int, end: int
) -> None:
    assert end_across(pieces, seam=seam, stops=["\n\n"])[0] == end


def test_without_texts_that_end_it_a_call_is_as_it_was() -> None:
    for parameters, num_begun in (({"stop": ["x"]}, 0), ({"stop": []}, 2), ({}, 2)):
        call = EngineCall((1, 0, 0), parameters, num_begun=num_begun)
        found = Seam.of(call, decoder=Pieces(["x"]), max_model_len=MAX_MODEL_LEN)
        assert found.with_stops(call.parameters) is call.parameters


def test_what_cannot_be_longer_is_cut_where_the_engine_stops_at_the_rest_of_a_text() -> None:
    """At the limit of the completion, and at that of the model."""
    for max_tokens, max_model_len in ((2, MAX_MODEL_LEN), (9, 5)):
        call = EngineCall((0, 0, 0), {"stop": ["xy"], "max_tokens": max_tokens}, num_begun=2)
        found = Seam.of(call, decoder=Pieces(["x", "z", "y"]), max_model_len=max_model_len)
        assert found.rests == ("y",)
        output = SimpleNamespace(text="z", stop_reason="y")
        rollout = replace(rollout_of_tokens(0, 2, is_terminated=True), completion_ids=(1, 2))
        cut = found.checked(rollout, output)
        assert (cut.is_terminated, cut.is_aborted) == (False, False)
