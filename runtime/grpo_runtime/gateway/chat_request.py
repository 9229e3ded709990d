"""A request to /v1/chat/completions: what of it is taken, what the job decides, and what is refused."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_runtime.gateway.chat_template import Message
from grpo_runtime.gateway.own_parameters import OWN, OwnParameters, read_own_parameters
from grpo_runtime.gateway.refusals import BadFieldError

REFUSED = {
    "structured_outputs": "a grammar would change the distribution that is trained",
    "n": "one reply a call is sampled: open a session for each",
    "logit_bias": "it would change the distribution that is trained",
    "response_format": "a grammar would change the distribution that is trained",
    "functions": "send tools instead",
    "function_call": "send tool_choice instead",
    "prediction": "every token is sampled",
    "audio": "only text is served",
    "modalities": "only text is served",
}
"""Fields that change what a reply is, and why they are refused. What says nothing is taken: n of 1, text as
the format and the only modality, and null."""
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
JOB_DECIDES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""What is sampled is what is trained, so these are the job's."""
NOT_READ: Mapping[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "thinking_token_budget": (),
    "reasoning_effort": (),
    "verbosity": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "parallel_tool_calls": (True,),
}
"""Further fields that shape a prompt or what is sampled. A session that is trained does not read them. Each
has its values that ask for nothing."""
_OF_TOOL: Mapping[str, tuple[type, str]] = {"defer_loading": (bool, "true or false")}
_OF_FUNCTION: Mapping[str, tuple[type, str]] = {
    "description": (str, "a text"),
    "parameters": (dict, "an object"),
    "strict": (bool, "true or false"),
    **_OF_TOOL,
}
"""What a tool may say of its function besides its name."""
_LONGEST_STOP, _MOST_STOPS = 256, 16


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Who decides how a session is sampled."""

    given: Mapping[str, Any]
    """The job's values of what it decides: a request that asks for one of these overrides nothing."""
    vocab_size: int
    """Token ids are below it."""
    end_ids: frozenset[int] = frozenset()
    """Tokens that end completions."""
    is_trained: bool = True
    """Whether the job decides. Otherwise each request does."""


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """What is sampled for one call."""

    messages: tuple[Message, ...]
    """Their contents are texts."""
    tools: tuple[Message, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    model: str = ""
    is_streamed: bool = False
    has_usage_in_stream: bool = False
    has_logprobs: bool = False
    has_token_ids: bool = False
    overridden: tuple[str, ...] = ()
    """Fields that the request has and the job decides."""
    own: OwnParameters | None = None
    """Those of a session that is not trained."""


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """What is sampled for a call that brings the tokens of its prompt."""

    prompt_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    overridden: tuple[str, ...] = ()
    own: OwnParameters | None = None


def read_token_request(body: Mapping[str, Any], *, terms: Terms) -> TokenRequest:
    """The request to /inference/v1/generate with this body; else as `read_chat_request`."""
    if body.get("stream"):
        raise BadFieldError("stream", "whole answers are served here")
    ids = body.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise BadFieldError("token_ids", "it must be a list of token ids")
    if not all(0 <= token < terms.vocab_size for token in ids):
        raise BadFieldError("token_ids", f"tokenizer and model have the ids from 0 to {terms.vocab_size - 1}")
    parameters = body.get("sampling_params") or {}
    if not isinstance(parameters, dict):
        raise BadFieldError("sampling_params", "it must be an object")
    _refuse(parameters, terms=terms)
    return TokenRequest(
        prompt_ids=tuple(ids),
        stop=_stop(parameters),
        max_tokens=_max_tokens(parameters),
        overridden=_overridden(parameters, terms=terms),
        own=_own(parameters, terms=terms),
    )


def read_chat_request(body: Mapping[str, Any], *, terms: Terms) -> ChatRequest:
    """The request with this body, parsed from JSON. Raises BadFieldError."""
    _refuse(body, terms=terms)
    choice = body.get("tool_choice") or "auto"
    tools = _tools(body) if choice != "none" else ()
    overridden = _overridden(body, terms=terms)
    if choice not in ("auto", "none"):
        # a grammar would make the reply a call
        overridden = (*overridden, "tool_choice")
    options = body.get("stream_options") or {}
    return ChatRequest(
        messages=_messages(body),
        tools=tools,
        stop=_stop(body),
        max_tokens=_max_tokens(body),
        model=str(body.get("model") or ""),
        is_streamed=bool(body.get("stream")),
        has_usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
        has_logprobs=bool(body.get("logprobs")),
        has_token_ids=bool(body.get("return_token_ids")),
        overridden=overridden,
        own=_own(body, terms=terms),
    )


def _refuse(asked: Mapping[str, Any], *, terms: Terms) -> None:
    for field, why in REFUSED.items():
        if not terms.is_trained and field in OWN:
            continue
        if asked.get(field) is not None and asked[field] not in _NOTHING.get(field, ()):
            raise BadFieldError(field, why)


def _overridden(asked: Mapping[str, Any], *, terms: Terms) -> tuple[str, ...]:
    if not terms.is_trained:
        return ()
    named = {name: asked[name] for name in (*JOB_DECIDES, *NOT_READ) if asked.get(name) is not None}
    ends = named.get("stop_token_ids")
    if isinstance(ends, list) and all(type(token) is int and token in terms.end_ids for token in ends):
        del named["stop_token_ids"]  # a completion ends there anyway
    return tuple(
        name
        for name, value in named.items()
        if value != terms.given.get(name) and value not in NOT_READ.get(name, ())
    )


def _own(asked: Mapping[str, Any], *, terms: Terms) -> OwnParameters | None:
    return None if terms.is_trained else read_own_parameters(asked, vocab_size=terms.vocab_size)


def _objects(body: Mapping[str, Any], field: str) -> tuple[dict[str, Any], ...]:
    found = body.get(field) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadFieldError(field, "it must be a list of objects")
    return tuple(found)


def _tools(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """The functions that may be called. What passes here is a tool to vLLM's parsers, too."""
    found = _objects(body, "tools")
    for place, tool in enumerate(found):
        where, function = f"tools[{place}]", tool.get("function")
        if tool.get("type", "function") != "function":
            raise BadFieldError(f"{where}.type", "only tools of type function are served")
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not function["name"]
        ):
            raise BadFieldError(f"{where}.function.name", "it is missing")
        _require_kinds(tool, where, _OF_TOOL)
        _require_kinds(function, f"{where}.function", _OF_FUNCTION)
    return found


def _require_kinds(found: Mapping[str, Any], where: str, kinds: Mapping[str, tuple[type, str]]) -> None:
    for name, (kind, wanted) in kinds.items():
        if found.get(name) is not None and not isinstance(found[name], kind):
            raise BadFieldError(f"{where}.{name}", f"it must be {wanted}")


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    found = _objects(body, "messages")
    if not found:
        raise BadFieldError("messages", "there is none")
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(found))


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """The message with a text as its content, without what it leaves open."""
    if not isinstance(message.get("role"), str):
        raise BadFieldError(f"{where}.role", "it is missing")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadFieldError(f"{where}.tool_calls", "it must be a list of objects")
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadFieldError(f"{where}.tool_calls[{place}].function.name", "it is missing")
        if "arguments" not in function:
            raise BadFieldError(f"{where}.tool_calls[{place}].function.arguments", "they are missing")
    kept = {name: value for name, value in message.items() if value is not None}
    if not calls:
        kept.pop("tool_calls", None)
    return {**kept, "content": _text(message.get("content"), where=f"{where}.content")}


def _text(content: Any, *, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadFieldError(where, "it must be text, or a list of parts that are text")
    for place, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise BadFieldError(f"{where}[{place}]", "only parts of type text are served")
    return "".join(part["text"] for part in content)


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    found = body.get("stop") or []
    stops = [found] if isinstance(found, str) else found
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadFieldError("stop", "it must be a text or a list of texts")
    if len(stops) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in stops):
        raise BadFieldError("stop", f"at most {_MOST_STOPS} texts of {_LONGEST_STOP} characters are served")
    return tuple(stops)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for field in ("max_completion_tokens", "max_tokens"):
        found = body.get(field)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise BadFieldError(field, "it must be a number of tokens, at least 1")
        return found
    return None


def canonical(value: Any) -> str:
    """JSON of a value, the same for values that are equal."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def same_tools(tools: Sequence[Message]) -> str:
    """Equal for equal tools."""
    return canonical(list(tools))
