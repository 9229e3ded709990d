"""How a session that is not trained, such as a judge's, may be sampled: as its calls say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_runtime.gateway.refusals import BadFieldError

_LARGEST_SEED = 2**63 - 1
_MOST_DIGITS = 18
"""Of a token id. Python reads no number of more than 4,300."""


@dataclass(frozen=True)
class _Range:
    """The numbers that vLLM takes for a parameter."""

    lowest: float
    highest: float
    is_open: bool = False
    """Whether `lowest` itself is not among them."""

    def has(self, number: float) -> bool:
        return self.lowest < number <= self.highest or (number == self.lowest and not self.is_open)

    def __str__(self) -> str:
        return f"{'above' if self.is_open else 'from'} {self.lowest:g} to {self.highest:g}"


_RANGES = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, is_open=True),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, 10, is_open=True),
}
_WHOLE = {"top_k": _Range(-1, 2**31 - 1), "seed": _Range(0, _LARGEST_SEED)}
_BIAS = _Range(-100, 100)
_TOKENS = ("stop_token_ids", "allowed_token_ids")
OWN = (*_RANGES, *_WHOLE, *_TOKENS, "ignore_eos", "logit_bias", "response_format")
"""Fields that such a session sets for itself."""


@dataclass(frozen=True)
class OwnParameters:
    """What a request says of its sampling."""

    json: str
    """Of vLLM's parameters that replace the job's."""
    seed: int | None = None


def read_own_parameters(asked: Mapping[str, Any], *, vocab_size: int) -> OwnParameters:
    """The parameters of a request. Raises BadFieldError for what an engine would refuse: it names the
    field."""
    given = {name: asked[name] for name in OWN if asked.get(name) is not None}
    for name, limits in _RANGES.items():
        if name in given and not (_is_number(given[name]) and limits.has(given[name])):
            raise BadFieldError(name, f"it must be a number {limits}")
    for name, limits in _WHOLE.items():
        if name in given and not (type(given[name]) is int and limits.has(given[name])):
            raise BadFieldError(name, f"it must be a whole number {limits}")
    for name in _TOKENS:
        if name in given:
            _require_tokens(name, given[name], vocab_size=vocab_size)
    if not isinstance(given.get("ignore_eos", False), bool):
        raise BadFieldError("ignore_eos", "it must be true or false")
    seed, format_ = given.pop("seed", None), given.pop("response_format", None)
    if "logit_bias" in given:
        _require_bias(given["logit_bias"], vocab_size=vocab_size)
    grammar = _grammar(format_)
    if grammar is not None:
        given["structured_outputs"] = grammar
    return OwnParameters(json.dumps(given, sort_keys=True), seed)


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _require_tokens(name: str, found: Any, *, vocab_size: int) -> None:
    is_list = isinstance(found, list) and all(type(token) is int for token in found)
    if not is_list or not (found or name == "stop_token_ids"):
        raise BadFieldError(name, "it must be a list of token ids")
    if not all(0 <= token < vocab_size for token in found):
        raise BadFieldError(name, f"there are tokens from 0 to {vocab_size - 1}")


def _require_bias(found: Any, *, vocab_size: int) -> None:
    if not isinstance(found, dict):
        raise BadFieldError("logit_bias", "it must be an object of token ids and numbers")
    for token, bias in found.items():
        if not token.isdecimal() or len(token) > _MOST_DIGITS or int(token) >= vocab_size:
            named = token[: _MOST_DIGITS + 1]
            raise BadFieldError(
                "logit_bias", f"{named} is no token: there are those from 0 to {vocab_size - 1}"
            )
        if not (_is_number(bias) and _BIAS.has(bias)):
            raise BadFieldError("logit_bias", f"of token {token} it must be a number {_BIAS}")


def _grammar(found: Any) -> dict[str, Any] | None:
    """vLLM's structured_outputs for a response_format; None for plain text."""
    kind = found.get("type") if isinstance(found, dict) else None
    if found is None or kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    described = found.get("json_schema") if isinstance(found, dict) else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise BadFieldError("response_format", "text, json_object and json_schema with a schema are served")
    # only where it is asked for: its import takes a while
    import xgrammar

    try:
        xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except Exception as error:
        # a schema is what the agent makes of it
        raise BadFieldError("response_format", f"vLLM cannot sample by this schema: {error}") from error
    return {"json": schema}
