"""Replies as vLLM's own parsers read them, without its server."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tiny_families import chat_tokenizer
from transformers import PreTrainedTokenizerFast

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.chat_request import ChatRequest, Terms, read_chat_request
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.gateway.refusals import BadFieldError
from grpo_runtime.gateway.replies import Reply
from grpo_runtime.gateway.session import ChatModel
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.agents.script import Script

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = chat_tokenizer()
    made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"])
    return made


def read(
    tokenizer: PreTrainedTokenizerFast, text: str, *, tools: Sequence[Any] = (ADD,), **parsers: Any
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


BROKEN = '<tool_call>\n{"name": "add", "argum\n</tool_call>'


@pytest.mark.parametrize(
    ("parser", "text", "is_unreadable"),
    [
        ("hermes", BROKEN, True),
        ("hermes", f"{CALL}\n{BROKEN}", True),
        ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": "\\ud83d"}}\n</tool_call>', True),
        ("hermes", "a < b, and so is <tool", False),
        ("hermes", CALL, False),
        ("qwen3_coder", CALL, True),  # what another model would write
        ("qwen3_coder", "It is 3.", False),
        ("llama3_json", '{"name":"add", "parameters": {"a"', True),
        ("llama3_json", "It is 3.", False),
        # vLLM has no grammar of its calls: nobody knows
        ("pythonic", "[add(a=1", False),
    ],
)
def test_a_call_that_cannot_be_read_is_known_by_the_text_with_which_vllm_says_that_calls_begin(
    tokenizer: PreTrainedTokenizerFast, parser: str, text: str, is_unreadable: bool
):
    assert read(tokenizer, text, tool_call_parser=parser).is_unreadable_call is is_unreadable
    # nothing could be called
    assert not read(tokenizer, text, tools=(), tool_call_parser=parser).is_unreadable_call


def test_a_call_that_is_only_thought_of_is_no_call(tokenizer: PreTrainedTokenizerFast):
    for behind, is_unreadable in (("It is 3.", False), (BROKEN, True)):
        text = f"<think>\nI could write {BROKEN}\n</think>\n\n{behind}"
        reply = read(tokenizer, text, tool_call_parser="hermes", reasoning_parser="deepseek_r1")
        assert (reply.content.strip(), reply.is_unreadable_call) == (behind, is_unreadable)
        assert not read(tokenizer, text, reasoning_parser="deepseek_r1").is_unreadable_call


def test_a_reply_has_no_thoughts_where_the_arguments_of_the_template_turn_them_off(
    tokenizer: PreTrainedTokenizerFast,
):
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    for arguments, wanted in (({}, ("It is 3.", "")), ({"enable_thinking": False}, ("", "It is 3."))):
        reply = read(tokenizer, "It is 3.", **parsers, template_arguments=arguments)
        assert (reply.reasoning, reply.content) == wanted


def test_without_parsers_a_reply_is_its_text(tokenizer: PreTrainedTokenizerFast):
    assert read(tokenizer, CALL).content == CALL


def test_a_parser_that_vllm_does_not_have_is_named(tokenizer: PreTrainedTokenizerFast):
    with pytest.raises(UserError, match="hermit"):
        read(tokenizer, CALL, tool_call_parser="hermit")


@pytest.mark.parametrize(
    "tool",
    [
        ADD,
        {**ADD, "type": "custom"},
        {"function": {"name": "add"}},
        {"type": None, "function": {"name": "add"}},
        {"type": "function", "function": {"parameters": {}}},
        {"type": "function", "name": "add"},
        *(
            {**ADD, "function": {**ADD["function"], **more}}
            for more in (
                *({"name": 5}, {"description": 5}, {"parameters": []}, {"strict": "perhaps"}),
                *({"defer_loading": {}}, {"description": None, "parameters": None, "strict": None}),
                {"more": 5, "parameters": {"type": 5, "properties": [5]}},
            )
        ),
        {**ADD, "defer_loading": "perhaps"},
    ],
    ids=str,
)
def test_the_gateway_refuses_the_tools_that_vllm_does_not_take_with_which_a_reply_is_text(
    tokenizer: PreTrainedTokenizerFast, tool: Any
):
    reply = read(tokenizer, CALL, tools=[tool], tool_call_parser="hermes")
    body = {"messages": [{"role": "user", "content": "Add."}], "tools": [tool]}
    try:
        read_chat_request(body, terms=Terms(given={}, vocab_size=1))
    except BadFieldError as error:
        assert error.field.startswith("tools[0].")
        assert (reply.content, reply.calls, reply.is_unreadable_call) == (CALL, (), False)
    else:
        assert [call.name for call in reply.calls] == ["add"]


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
