"""What is written behind a sampled reply is what the template of the family writes there, in the forms that
chat templates have."""

import pytest
from chats import template_over

from grpo_runtime.gateway.chat_template import ChatTemplate, Message, TemplateRefusesError

CALL = {"id": "t00000000", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PLAIN = {"role": "assistant", "content": "It is 3."}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
USER, MORE = {"role": "user", "content": "1+2?"}, {"role": "user", "content": "And 4?"}
TOOL = {"role": "tool", "tool_call_id": "t00000000", "content": "3"}
_CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.arguments | tojson }}</call>{% endfor %}"
FORMS = {
    # an end of each turn, and a line behind it
    "ChatML": (
        ["<|im_end|>"],
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        + _CALLS
        + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    # thoughts, an empty one in the last turn only, and a prompt that opens them
    "thoughts": (
        ["<|im_end|>"],
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
        + _CALLS
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    ),
    # a turn ends where the next one begins, so the last one has no end
    "the next role": (
        ["<|user|>", "<|observation|>"],
        "{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content }}"
        + _CALLS
        + "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    # of several ends the one that the template writes
    "two ends": (
        ["<|eot_id|>", "<|eom_id|>"],
        "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|stop|>\n\n{{ m.content | trim }}"
        + _CALLS
        + "{{ '<|eom_id|>' if m.tool_calls else '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant<|stop|>\n\n{% endif %}",
    ),
    # a reply that goes on has another end than the last one, which is the one that is sampled
    "another end in the middle": (
        ["<|return|>"],
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
        + _CALLS
        + "{% set is_last = loop.last and m.role == 'assistant' %}"
        "{{ '<|return|>' if is_last else '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ),
    # no ends at all
    "plain text": (
        ["</s>"],
        "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}" + _CALLS + "{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    ),
}


_CHATML = "\n<|im_start|>user\nAnd 4?<|im_end|>\n<|im_start|>assistant\n"
_HARMONY = "<|start|>user<|message|>And 4?<|end|><|start|>assistant"
_LLAMA = "<|start|>user<|stop|>\n\nAnd 4?<|eot_id|><|start|>assistant<|stop|>\n\n"


def template_of(form: str) -> ChatTemplate:
    ends, text = FORMS[form]
    tags = {"</s>", "<|start|>", "<|stop|>", "<|message|>", "<|end|>", "<|im_start|>"}
    return template_over(text, begin="<s>", ends=ends, tags=tags, vocab_size=300)


@pytest.mark.parametrize("has_ended", [True, False])
@pytest.mark.parametrize(("reply", "more"), [(PLAIN, MORE), (CALLING, TOOL)], ids=["text", "a call"])
@pytest.mark.parametrize("form", ["ChatML", "the next role", "two ends"])
def test_prompt_reply_and_what_follows_are_the_text_of_the_template(
    form: str, reply: Message, more: Message, has_ended: bool
):
    template = template_of(form)
    decode, [first, *_] = template.tokenizer.decode, FORMS[form][0]
    prompt, whole = template.prompt([USER]), decode(template.prompt([USER, reply, more]))
    behind = whole.removeprefix(decode(prompt))
    assert behind != whole
    end = min((place, end) for end in FORMS[form][0] if (place := behind.find(end)) >= 0)
    said = behind[: end[0]] + (end[1] if has_ended else "")
    sampled = template.tokenizer(said, add_special_tokens=False)["input_ids"]
    found = template.behind_reply(reply, [more], sampled=sampled)
    assert found is not None and first
    assert decode([*prompt, *sampled, *found]) == whole


@pytest.mark.parametrize(
    ("form", "sampled", "behind"),
    [
        ("thoughts", "a</think>b<|im_end|>", _CHATML + "<think>\n"),
        ("another end in the middle", "b<|return|>", _HARMONY),
        ("another end in the middle", "b", "<|end|>" + _HARMONY),
        ("plain text", " b", "\nUSER: And 4?\nASSISTANT:"),
        ("two ends", "b<|eom_id|>", _LLAMA),
    ],
)  # fmt: skip
def test_what_was_sampled_stays_where_the_template_would_write_it_otherwise(
    form: str, sampled: str, behind: str
):
    template = template_of(form)
    ids = template.tokenizer(sampled, add_special_tokens=False)["input_ids"]
    found = template.behind_reply(PLAIN, [MORE], sampled=ids)
    assert found is not None and template.tokenizer.decode(found) == behind


@pytest.mark.parametrize("reply", [CALLING, PLAIN], ids=["a call", "text"])
def test_a_turn_whose_end_is_not_found_is_rendered_whole(reply: Message):
    """A template without ends closes calls by nothing that could be told from a turn's end; one that leaves
    replies out writes no stand-in."""
    if reply is CALLING:
        assert template_of("plain text").behind_reply(reply, [TOOL], sampled=[5]) is None
    template = template_of("ChatML")
    template.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    assert template.behind_reply(reply, [MORE], sampled=[5]) is None


def test_what_a_template_raises_is_told():
    template = template_of("ChatML")
    template.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateRefusesError, match="roles must alternate"):
        template.prompt([USER])


def test_a_reply_that_is_the_stand_in_itself_is_told_from_it():
    template = template_of("ChatML")
    more = {"role": "user", "content": "Reply0Text"}
    found = template.behind_reply(PLAIN, [more], sampled=[5])
    assert found is not None
    assert template.tokenizer.decode(found).startswith("<|im_end|>\n<|im_start|>user\nReply0Text<|im_end|>")
