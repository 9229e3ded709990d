"""Texts that end a completion, across the place where an engine goes on with tokens of another one.

vLLM looks for these texts in what it samples, and what there is of the completion already is a prompt to it.
One that begins in there is looked for here, when vLLM has answered. Where that prompt ends amid a character,
vLLM takes all of its text for what it samples, and ends at a text of the prompt: nothing is handed over that
ends so.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.rollouts.wire import EngineCall

_UNFINISHED = "\ufffd"
"""What a tokenizer makes of the first bytes of a character whose others have not come."""
_MOST_UNFINISHED = 3
"""Tokens of one: the last of its four bytes finishes it."""
_TAIL = 8
"""Tokens that are enough to see whether the last character is finished."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


def ended_at_stop(rollout: Rollout, *, call: EngineCall, decoder: Decoder) -> Rollout:
    """What vLLM sampled for a call, up to the token that completes a text of `stop` which begins in the
    `num_so_far` tokens of the call; all of it where there is no such text."""
    stops: Sequence[str] = call.parameters.get("stop") or ()
    if not (call.num_so_far and stops):
        return rollout
    ids_so_far = tuple(call.token_ids[-call.num_so_far :])

    def num_chars(text: str) -> int:
        # vLLM shows a character with the token that completes it
        return len(text.rstrip(_UNFINISHED))

    def text_of(num_tokens: int) -> str:
        # of all tokens together: those of a character may be on both sides
        return decoder.decode(ids_so_far + rollout.completion_ids[:num_tokens], skip_special_tokens=True)

    num_tokens = len(rollout.completion_ids)
    seam, text = num_chars(text_of(0)), text_of(num_tokens)
    ends = []
    for stop in stops:
        start = text.find(stop, max(0, seam - len(stop) + 1), seam + len(stop))
        if start >= 0:
            ends.append(start + len(stop))
    if not ends:
        return rollout
    end = bisect_left(range(num_tokens), min(ends), lo=1, key=lambda count: num_chars(text_of(count)))
    return replace(_beginning_of(rollout, end), is_terminated=True, is_aborted=False)


def of_whole_characters(rollout: Rollout, *, call: EngineCall, decoder: Decoder) -> Rollout:
    """What is handed over of a call with texts of `stop`, without the last tokens where they only begin a
    character: they are sampled anew. A completion that ended, and bytes that are no text, stay as they
    are."""
    if not (rollout.is_aborted and call.parameters.get("stop")):
        return rollout
    num_tokens = len(rollout.completion_ids)
    for end in range(num_tokens, max(num_tokens - _MOST_UNFINISHED, 0) - 1, -1):
        tail = rollout.completion_ids[max(0, end - _TAIL) : end]
        if not decoder.decode(tail, skip_special_tokens=True).endswith(_UNFINISHED):
            return rollout if end == num_tokens else _beginning_of(rollout, end)
    return rollout


def _beginning_of(rollout: Rollout, num_tokens: int) -> Rollout:
    return replace(
        rollout,
        completion_ids=rollout.completion_ids[:num_tokens],
        rollout_logprobs=rollout.rollout_logprobs[:num_tokens],
        versions=tuple(
            replace(span, end=min(span.end, num_tokens))
            for span in rollout.versions
            if span.start < num_tokens
        ),
    )
