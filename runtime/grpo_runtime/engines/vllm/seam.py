"""Texts that end a completion, across the place where an engine goes on with tokens of another one.

vLLM looks for these texts in what it samples, and what there is of the completion already is a prompt to it.
So it is given the rests of those that may have begun in there. Such a rest counts only as the first text that
is sampled. Where vLLM stops at one further on, the completion goes on from there, if it may be longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.rollouts.wire import EngineCall


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


@dataclass(frozen=True)
class Seam:
    """`rests` are the rests of texts of `stops` of which a beginning ends what there is of the completion,
    which is the tokens `begun_ids`. At most `room` more tokens are sampled."""

    decoder: Decoder
    begun_ids: Sequence[int] = ()
    stops: Sequence[str] = ()
    rests: tuple[str, ...] = ()
    room: int = 0

    @classmethod
    def of(cls, call: EngineCall, *, decoder: Decoder, max_model_len: int) -> "Seam":
        """That of a call to an engine whose prompts and completions have at most `max_model_len` tokens."""
        stops: Sequence[str] = call.parameters.get("stop") or ()
        if not (call.num_begun and stops):
            return cls(decoder)
        begun_ids = call.token_ids[-call.num_begun :]
        begun = decoder.decode(begun_ids, skip_special_tokens=True)
        rests = [
            stop[length:] for stop in stops for length in range(1, len(stop)) if begun.endswith(stop[:length])
        ]
        own = tuple(dict.fromkeys(rest for rest in rests if rest not in stops))
        room = min(call.parameters["max_tokens"], max_model_len - len(call.token_ids))
        return cls(decoder, begun_ids, stops, own, room)

    def with_stops(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """vLLM's parameters, which stop at the rests, too."""
        return {**parameters, "stop": [*self.stops, *self.rests]} if self.rests else parameters

    def checked(self, rollout: Rollout, output: Any) -> Rollout:
        """What vLLM's `output` is: one that stopped at a rest behind other text is not finished, unless the
        same token brought a whole text of `stops`."""
        is_at_seam = not output.text
        if output.stop_reason not in self.rests or is_at_seam:
            return rollout
        token_ids = [*self.begun_ids, *rollout.completion_ids]
        text = self.decoder.decode(token_ids, skip_special_tokens=True)
        if any(stop in text for stop in self.stops):
            return rollout
        return replace(rollout, is_terminated=False, is_aborted=len(rollout.completion_ids) < self.room)
