"""Answers of /v1/chat/completions, whole and streamed, and of /inference/v1/generate."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_runtime.gateway.chat_request import ChatRequest
from grpo_runtime.gateway.replies import UNREADABLE_CALL
from grpo_runtime.gateway.session import Answer

Json = dict[str, Any]


@dataclass(frozen=True)
class AnswerHead:
    """What names an answer. `created` is in seconds since 1970."""

    answer_id: str
    created: int

    def json(self, answer: Answer, *, kind: str) -> Json:
        model = _chat(answer).model
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": model}


def chat_answer(answer: Answer, *, head: AnswerHead, tokenizer: PreTrainedTokenizerBase) -> Json:
    """The body of an answer."""
    chat = _chat(answer)
    choice: Json = {
        "index": 0,
        "message": answer.message,
        **_end(answer),
        "logprobs": {"content": _logprobs(answer, tokenizer)} if chat.has_logprobs else None,
    }
    body = head.json(answer, kind="chat.completion")
    if chat.has_token_ids:
        choice["token_ids"] = list(answer.completion_ids)
        body["prompt_token_ids"] = list(answer.turn.prompt_ids)
    return {**body, "choices": [choice], "usage": _usage(answer)}


def chat_events(answer: Answer, *, head: AnswerHead, tokenizer: PreTrainedTokenizerBase) -> Iterator[bytes]:
    """The same as server-sent events: a chunk with all of the message, one with its end, one with the usage
    where it is asked for."""
    chat = _chat(answer)
    of_all = head.json(answer, kind="chat.completion.chunk")
    calls = [{"index": place, **call} for place, call in enumerate(answer.message.get("tool_calls", []))]
    delta = {**answer.message, **({"tool_calls": calls} if calls else {})}
    begin: Json = {"index": 0, "delta": delta, "finish_reason": None}
    if chat.has_logprobs:
        begin["logprobs"] = {"content": _logprobs(answer, tokenizer)}
    first: Json = {**of_all, "choices": [begin]}
    if chat.has_token_ids:
        begin["token_ids"] = list(answer.completion_ids)
        first["prompt_token_ids"] = list(answer.turn.prompt_ids)
    end = {"index": 0, "delta": {}, **_end(answer)}
    yield _event(first)
    yield _event({**of_all, "choices": [end]})
    if chat.has_usage_in_stream:
        yield _event({**of_all, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def generate_answer(answer: Answer, *, answer_id: str) -> Json:
    """The body of an answer to a client that brings tokens: each token as vLLM's `token_id`, and as the text
    `token_id:N`, which other clients want."""
    content = [
        {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(answer.completion_ids, answer.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "token_ids": list(answer.completion_ids),
        "logprobs": {"content": content},
        "finish_reason": answer.finish_reason,
    }
    return {"request_id": answer_id, "choices": [choice], "usage": _usage(answer)}


def _chat(answer: Answer) -> ChatRequest:
    assert isinstance(answer.turn.asked, ChatRequest), "the call brought tokens"
    return answer.turn.asked


def _end(answer: Answer) -> Json:
    """What a choice says of how it ended."""
    unreadable = {UNREADABLE_CALL: True} if answer.is_unreadable_call else {}
    return {"finish_reason": answer.finish_reason, **unreadable}


def _usage(answer: Answer) -> Mapping[str, int]:
    num_prompt, num_completion = len(answer.turn.prompt_ids), len(answer.completion_ids)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def _logprobs(answer: Answer, tokenizer: PreTrainedTokenizerBase) -> Sequence[Json]:
    """Of a token that is a part of a character the text is what stands for one."""
    pairs = zip(answer.completion_ids, answer.logprobs, strict=True)
    return [_logprob(str(tokenizer.decode([token])), logprob) for token, logprob in pairs]


def _logprob(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _event(body: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
