"""Prompts as tokens: texts, chats and templates, how they begin and end, and what they have opened."""

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from grpo_runtime.data.prompt import ChatOptions, Prompt, encode_prompt, prefill_of
from grpo_runtime.errors import UserError
from grpo_runtime.model.tiny import char_tokenizer


def prompt(content: Any) -> Prompt:
    return Prompt(index=4, content=content, columns={})


def test_a_text_prompt_becomes_its_tokens() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    token_ids = encode_prompt(prompt("3+5="), tokenizer=tokenizer, max_prompt_tokens=4)
    assert tokenizer.decode(token_ids) == "3+5="


def test_a_chat_goes_through_the_models_template() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[go]{% endif %}"
    )
    token_ids = encode_prompt(
        prompt([{"role": "user", "content": "hi"}]), tokenizer=tokenizer, max_prompt_tokens=64
    )
    assert tokenizer.decode(token_ids) == "[user]hi[go]"


def test_a_message_in_several_texts_is_their_text() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = "[{{ messages[0].content | trim }}]"
    parts = [{"type": "text", "text": "hi "}, {"type": "text", "text": "you"}]
    token_ids = encode_prompt(
        prompt([{"role": "user", "content": parts}]), tokenizer=tokenizer, max_prompt_tokens=64
    )
    assert tokenizer.decode(token_ids) == "[hi you]"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "null"),
        (7, r"no text \(int\)"),
        ([{"type": "text", "text": "hi"}, {"type": "image"}], r"a list with parts .* \(image, text\)"),
    ],
)
def test_a_content_that_is_not_text_is_refused_with_row_and_message(content: Any, what: str) -> None:
    chat = [{"role": "system", "content": "Sum."}, {"role": "user", "content": content}]
    with pytest.raises(UserError, match=rf"^row 5 .*: message 2 \(user\) has a content that is {what}: make"):
        encoded(chat)


def test_a_message_that_calls_tools_may_have_no_text() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    chat = [{"role": "user", "content": "1+1?"}, call, {"role": "tool", "content": "2"}]
    template = "{% for m in messages %}{{ m.content or 'calls' }};{% endfor %}"
    assert encoded(chat, template=template) == "1+1?;calls;2;"


def test_a_template_that_fails_is_told_with_the_row() -> None:
    with pytest.raises(UserError, match=r"^row 5 .* chat template refuses \(ZeroDivisionError: division by"):
        encoded([{"role": "user", "content": "hi"}], template="{{ 1 / 0 }}")


def test_a_chat_that_the_template_refuses_names_its_row() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = "{{ raise_exception('no system messages, please') }}"
    with pytest.raises(UserError, match=r"^row 5 .* refuses \(no system messages, please\)"):
        encode_prompt(
            prompt([{"role": "system", "content": "hi"}]), tokenizer=tokenizer, max_prompt_tokens=64
        )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "without any token"),
        ("12345", "5 tokens but .* leaves 4: raise engine.maxModelLen"),
        ([{"role": "user", "content": "hi"}], "has no chat template"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_with_its_row(content: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^row 5 of the dataset.*{sentence}"):
        encode_prompt(prompt(content), tokenizer=char_tokenizer(max_length_tokens=64), max_prompt_tokens=4)


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}[quick]{% endif %}"
)


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ("hi", ChatOptions(is_applied_to_text=True), "[user]hi"),
        ("hi", ChatOptions(is_applied_to_text=True, system_prompt="Sum."), "[system]Sum.[user]hi"),
        ([{"role": "user", "content": "hi"}], ChatOptions(system_prompt="Sum."), "[system]Sum.[user]hi"),
        ([{"role": "system", "content": "own"}], ChatOptions(system_prompt="Sum."), "[system]own"),
        (
            "hi",
            ChatOptions(is_applied_to_text=True, arguments={"enable_thinking": False}),
            "[user]hi[quick]",
        ),
        (
            "hi",
            ChatOptions(is_applied_to_text=True, template="<{{ messages[0].content }}>"),
            "<hi>",
        ),
        ("hi", ChatOptions(), "hi"),
    ],
)
def test_a_prompt_is_the_text_that_the_chat_options_ask_for(
    content: Any, options: ChatOptions, text: str
) -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = TEMPLATE
    token_ids = encode_prompt(
        prompt(content), tokenizer=tokenizer, max_prompt_tokens=64, chat_options=options
    )
    assert tokenizer.decode(token_ids) == text


def test_a_template_of_the_job_serves_a_tokenizer_that_has_none() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    options = ChatOptions(is_applied_to_text=True, template="<{{ messages[0].content }}>")
    token_ids = encode_prompt(prompt("hi"), tokenizer=tokenizer, max_prompt_tokens=64, chat_options=options)
    assert tokenizer.decode(token_ids) == "<hi>"


def test_a_text_that_options_of_a_chat_are_meant_for_is_refused() -> None:
    options = ChatOptions(system_prompt="Sum.", needed_by="systemPrompt")
    with pytest.raises(UserError, match=r"^row 5 .* set sampling.applyChatTemplate .* sampling.systemPrompt"):
        encode_prompt(
            prompt("hi"),
            tokenizer=char_tokenizer(max_length_tokens=64),
            max_prompt_tokens=64,
            chat_options=options,
        )


CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def encoded(
    content: Any,
    *,
    template: str = CHATML,
    post_processor: Any = None,
    ends: tuple[str, ...] = (),
    **options: Any,
) -> str:
    """The text of the encoded prompt, special tokens included. `ends` are tokens that end a completion."""
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = template
    tokenizer.bos_token = "<|unk|>"
    if post_processor is not None:
        tokenizer.backend_tokenizer.post_processor = post_processor
    tokenizer.add_tokens(list(ends))
    token_ids = encode_prompt(
        prompt(content),
        tokenizer=tokenizer,
        max_prompt_tokens=64,
        chat_options=ChatOptions(**options),
        end_ids=frozenset(tokenizer.convert_tokens_to_ids(list(ends))),
    )
    return str(tokenizer.decode(token_ids))


def around(before: str, after: str) -> Any:
    """What a tokenizer writes around every text."""
    tokenizer = char_tokenizer(max_length_tokens=64)
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<|unk|>", "<|eos|>")]
    return TemplateProcessing(single=f"{before} $A {after}".strip(), special_tokens=special)


def test_a_chat_that_ends_with_a_message_of_the_assistant_is_continued() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is "}]
    assert encoded(chat) == "<user>hi<|eos|>\n<assistant>The answer is "
    with pytest.raises(UserError, match=r"^row 5 .* ends with a message of the assistant without text"):
        encoded([*chat[:1], {"role": "assistant", "content": None}])


def test_a_template_that_drops_the_message_to_continue_is_refused() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]
    with pytest.raises(UserError, match=r"^row 5 .* refuses \(continue_final_message is set but"):
        encoded(chat, template="{{ messages[0].content }}")


def test_a_prompt_that_a_template_ends_with_the_end_of_a_turn_is_refused() -> None:
    sentence = r"^row 5 .* ends with <\|eos\|>.* write a generation prompt in sampling\.chatTemplate"
    with pytest.raises(UserError, match=sentence):
        encoded([{"role": "user", "content": "hi"}], template=CHATML.partition("{% if")[0])


def test_an_end_of_a_turn_that_is_not_the_tokenizers_end_is_refused_too() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>\n{% endfor %}"
    with pytest.raises(UserError, match=r"^row 5 .* ends with <\|im_end\|>, and completions would stand"):
        encoded([{"role": "user", "content": "hi"}], template=template, ends=("<|im_end|>",))


def test_an_end_that_the_tokenizer_writes_behind_every_text_is_left_out() -> None:
    assert encoded("hi", post_processor=around("<|unk|>", "<|eos|>")) == "<|unk|>hi"


def test_an_end_that_stands_in_the_text_is_refused() -> None:
    for text in ("hi<|eos|>", "hi<|eos|>\n"):
        with pytest.raises(UserError, match=r"^row 5 .* ends with <\|eos\|>.*: remove it from the text"):
            encoded(text)


def test_a_beginning_that_stands_in_the_text_is_not_written_twice() -> None:
    adds_one = around("<|unk|>", "")
    for text in ("hi", "<|unk|>hi", "<|unk|><|unk|>hi"):
        assert encoded(text, post_processor=adds_one) == "<|unk|>hi"


def test_a_message_that_is_a_whole_templated_text_is_refused_with_the_field_to_set() -> None:
    with pytest.raises(
        UserError, match=r"^row 5 .* message 1 \(user\) has <\|unk\|>.*\.applyChatTemplate false"
    ):
        encoded("<|unk|><user>hi", is_applied_to_text=True)


@pytest.mark.parametrize("sentence", ["No System role", "Only user and assistant roles are supported!"])
def test_a_system_prompt_that_the_template_refuses_is_named_by_its_field(sentence: str) -> None:
    template = (
        f"{{% if messages[0].role == 'system' %}}{{{{ raise_exception('{sentence}') }}}}{{% endif %}}"
        + CHATML
    )
    chat = [{"role": "user", "content": "hi"}]
    with pytest.raises(
        UserError, match=r"^sampling\.systemPrompt: .* refuses .*: remove sampling\.systemPrompt"
    ):
        encoded(chat, template=template, system_prompt="Sum.")
    with pytest.raises(UserError, match=r"^row 5 of the dataset"):
        encoded([{"role": "system", "content": "own"}, *chat], template=template, system_prompt="Sum.")


def test_a_chat_that_is_refused_with_and_without_the_system_prompt_names_its_row() -> None:
    with pytest.raises(UserError, match=r"^row 5 of the dataset .* refuses \(never\)"):
        encoded(
            [{"role": "user", "content": "hi"}],
            template="{{ raise_exception('never') }}",
            system_prompt="Sum.",
        )


def test_a_system_prompt_that_the_template_leaves_out_is_named_by_its_field() -> None:
    with pytest.raises(UserError, match=r"^sampling\.systemPrompt: .* leaves a system message out: remove"):
        encoded("hi", template="{{ messages[-1].content }}", is_applied_to_text=True, system_prompt="Sum.")


@pytest.mark.parametrize(
    ("content", "text", "prefill"),
    [
        ([{"role": "user", "content": "hi"}], "<user>hi<assistant>", ""),
        ([{"role": "user", "content": "hi"}], "<user>hi<assistant><think>\n", "<think>\n"),
        (
            [{"role": "user", "content": "hi"}],
            "<assistant><think>\n\n</think>\n\n",
            "<think>\n\n</think>\n\n",
        ),
        ("Show your work in <think></think>, then <answer></answer>. A:", None, ""),
        ("Q: hi\nA: Let me think.\n<think>", None, "<think>"),
        ("Q: hi\nA: <answer>", None, "<answer>"),
        (r"Q: hi A: The answer is \boxed{", None, r"\boxed{"),
        ("Write <think></think>", None, ""),
        ("Write <think></think>", "<bos>Write <think></think>", ""),
        ("a question", "<user>a question<assistant><think></think>", "<think></think>"),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So:"}],
            "<assistant>So:",
            "So:",
        ),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>\n"}],
            "<assistant><think>",
            "<think>",
        ),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "\n<think>\n"}],
            "<assistant>\n<think>\n",
            "\n<think>\n",
        ),
    ],
)
def test_a_prefill_is_what_the_prompt_has_written_of_the_completion(
    content: Any, text: str | None, prefill: str
) -> None:
    assert prefill_of(content, text=content if text is None else text) == prefill
