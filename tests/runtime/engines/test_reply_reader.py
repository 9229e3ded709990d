"""Replies as vLLM's own parsers read them, without its server."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tiny_families import chat_tokenizer
from transformers import PreTrainedTokenizerFast

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.chat_request import ChatRequest
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.gateway.replies import Reply
from grpo_runtime.gateway.session import ChatModel
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.agents.script import Script

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = chat_tokenizer()
    made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return made


def read(
    tokenizer: PreTrainedTokenizerFast, text: str, *, tools: Sequence[Any] = (ADD,), **parsers: str
) -> Reply:
    from grpo_runtime.engines.vllm.reply_reader import VllmReplies

    replies = VllmReplies(tokenizer, **parsers)
    return replies.read(text, token_ids=tokenizer(text)["input_ids"], tools=tools)


def test_thoughts_text_and_calls_are_told_apart(tokenizer: PreTrainedTokenizerFast):
    reply = read(
        tokenizer,
        f"<think>\nhm\n</think>\n\nWell.\n{CALL}\n{CALL}",
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )
    assert (reply.reasoning.strip(), reply.content.strip()) == ("hm", "Well.")
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("add", {"a": 1})] * 2


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {\n</tool_call>', (ADD,)),
        ('<tool_call>\n{"name": "add", "arguments": {"a": "\\ud83d"}}\n</tool_call>', (ADD,)),
        (CALL, ()),
    ],
    ids=["a call that is broken", "one with half of an emoji", "no tools to call"],
)
def test_what_is_no_call_stays_text(tokenizer: PreTrainedTokenizerFast, text: str, tools: Sequence[Any]):
    reply = read(tokenizer, text, tools=tools, tool_call_parser="hermes")
    assert (reply.content, reply.calls) == (text, ())


def test_without_parsers_a_reply_is_its_text(tokenizer: PreTrainedTokenizerFast):
    assert read(tokenizer, CALL).content == CALL


def test_a_parser_that_vllm_does_not_have_is_named(tokenizer: PreTrainedTokenizerFast):
    with pytest.raises(UserError, match="hermit"):
        read(tokenizer, CALL, tool_call_parser="hermit")


def test_a_script_writes_calls_so_that_a_parser_reads_them(tokenizer: PreTrainedTokenizerFast):
    """Also where a parser of thoughts takes all that has no end of them for a thought."""
    from grpo_runtime.engines.vllm.reply_reader import VllmReplies

    replies = VllmReplies(tokenizer, tool_call_parser="hermes", reasoning_parser="qwen3")
    model = ChatModel(
        name="policy",
        template=ChatTemplate(tokenizer=tokenizer, end_ids=frozenset({tokenizer.eos_token_id})),
        decoder=CompletionDecoder.of(tokenizer),
        replies=replies,
        vocab_size=len(tokenizer),
        max_model_len=512,
        max_tokens=512,
    )
    script = Script(model, calls=["add"])
    asked = ChatRequest(messages=({"role": "user", "content": "Add."},), tools=(ADD,))
    for wanted in (("", ["add"]), ("1", [])):
        text = model.decoder.text(script.says(asked, room=100))
        reply = replies.read(text, token_ids=tokenizer(text)["input_ids"], tools=(ADD,))
        assert (reply.content.strip(), [call.name for call in reply.calls]) == wanted
    assert script.not_called == {}
