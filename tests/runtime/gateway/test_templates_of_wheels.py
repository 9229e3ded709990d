"""The chat templates that come with TRL, from its own environment, and with vLLM, for models that have none:
which of them go on from what was sampled, and how. docs/decisions/samples.md says what it means."""

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from chats import template_over

from grpo_runtime.gateway.chat_template import ChatTemplate, TemplateRefusesError
from grpo_trl.environment import trl_python

pytestmark = pytest.mark.matrix

ENDS = {
    "basic": ["</s>"],
    "blip2": ["</s>"],
    "chatml": ["<|im_end|>"],
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "diffusion_gemma": ["<turn|>", "<|tool_response>"],
    "gemma": ["<end_of_turn>"],
    "gemma4": ["<turn|>", "<|tool_response>"],
    "glm": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "idefics": ["<end_of_utterance>"],
    "kimi_audio": ["<|im_kimia_text_eos|>"],
    "lfm2": ["<|im_end|>"],
    "llama": ["<|eot_id|>", "<|eom_id|>"],
    "llava": ["</s>"],
    "minicpm": ["<|im_end|>"],
    "muse": ["<|eot|>", "<|eom|>"],
    "nemotron": ["<|im_end|>"],
    "phi": ["<|end|>", "<|endoftext|>"],
    "qwen": ["<|im_end|>"],
    "smolvlm": ["<end_of_utterance>"],
}
"""Tokens that end completions, by the beginnings of templates' names: the longest counts."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
USER, MORE = {"role": "user", "content": "1+2?"}, {"role": "user", "content": "And 4?"}
CALL = {"id": "t00000000", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"role": "tool", "tool_call_id": "t00000000", "name": "add", "content": "3"}
CHATS = {
    "chat": ([USER], {"role": "assistant", "content": "It is 3."}, [MORE], []),
    "call": ([USER], {"role": "assistant", "content": "", "tool_calls": [CALL]}, [TOOL], TOOLS),
    "text and call": (
        [{"role": "system", "content": "Be brief."}, USER],
        {"role": "assistant", "content": "I add.", "tool_calls": [CALL]},
        [TOOL],
        TOOLS,
    ),
}
SAME, REWRITTEN, WHOLE, REFUSED = "same", "rewritten", "whole", "refused"
"""All is the template's own text; the template would write what was sampled in another way, and it stays as
it was; rendered whole, which begins another sequence unless the tokens are those; refused by the template."""
ENDLESS, EMPTY = "endless", "empty"
"""The template's own text, but for the end of a turn, which it never writes: one that was sampled stays; no
text at all, which the gateway refuses."""


@cache
def templates() -> dict[str, str]:
    """By name, those that models came with, and those that vLLM has for others."""
    code = "import pathlib, trl; print(pathlib.Path(trl.__file__).parent / 'chat_templates')"
    found = subprocess.run([trl_python(), "-c", code], check=True, capture_output=True, text=True)
    of_trl = Path(found.stdout.strip().splitlines()[-1]).glob("*.jinja")
    # without its import, which takes seconds
    [vllm] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
    of_vllm = (Path(vllm) / "transformers_utils" / "chat_templates").glob("*.jinja")
    texts = [
        *((path.stem, path.read_text()) for path in of_trl if not path.stem.endswith("_training")),
        *((path.stem.removeprefix("template_"), path.read_text()) for path in of_vllm),
    ]
    assert len(dict(texts)) == len(texts)
    return dict(texts)


def template_of(name: str) -> ChatTemplate:
    """With a tokenizer that has the tags of the template as tokens."""
    text = templates()[name]
    ends = ENDS[max((family for family in ENDS if name.startswith(family)), key=len)]
    tags = set(re.findall(r"<[|｜/]?[A-Za-z_▁]+[|｜]?>|\[/?[A-Z_]+\]", text))
    return template_over(text, begin="<bos>", ends=ends, tags=tags, vocab_size=600)


def outcome(name: str, chat: str) -> str:
    """What becomes of one chat, whether the end of its turn was sampled or not."""
    before, reply, more, tools = CHATS[chat]
    template = template_of(name)
    try:
        prompt = template.prompt(before, tools=tools)
        whole = template.prompt([*before, reply, *more], tools=tools)
    except TemplateRefusesError:
        return REFUSED
    if not prompt:
        return EMPTY
    found = {outcome_of(template, chat, prompt, whole, has_ended=has_ended) for has_ended in (True, False)}
    if found == {SAME, REWRITTEN}:
        return ENDLESS
    assert len(found) == 1, (name, chat, found)
    return found.pop()


def outcome_of(
    template: ChatTemplate, chat: str, prompt: Sequence[int], whole: Sequence[int], *, has_ended: bool
) -> str:
    _, reply, more, tools = CHATS[chat]
    decode, encode = template.tokenizer.decode, template.tokenizer
    ends = [template.tokenizer.convert_ids_to_tokens(token) for token in template.end_ids]
    behind = decode(whole).removeprefix(decode(prompt))
    is_kept = decode(whole).startswith(decode(prompt))
    place, end = min(((found, end) for end in ends if (found := behind.find(end)) >= 0), default=(-1, ""))
    # where the template writes the reply elsewhere the policy says its text
    said = behind[:place] if is_kept and place >= 0 else str(reply["content"])
    sampled = encode(said + (end or ends[0] if has_ended else ""), add_special_tokens=False)["input_ids"]
    written = template.behind_reply(reply, more, sampled=sampled, tools=tools)
    if written is None:
        return WHOLE
    text = decode([*prompt, *sampled, *written])
    assert str(more[-1]["content"]) in text.removeprefix(decode([*prompt, *sampled])), text
    return SAME if text == decode(whole) else REWRITTEN


_NEMOTRON = ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra")
_WITHOUT_CALLS = (
    *("cohere2", "deepseek_r1_distill", "lfm2", "llama3", "phi3", "phi3_5", "qwen2_5_vl"),
    *("basic", "blip2", "chatml"),
)
"""They write no calls where they are asked to."""
_GEMMA4 = ("diffusion_gemma", "gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5")
_EMPTY = ("kimi_audio",)
"""It reads a list of chats, which transformers gives to no template."""
_DEEPSEEK_OF_VLLM = ("deepseek_ocr", "deepseek_vl2")
EXPECTED: dict[str, dict[str, Sequence[str]]] = {
    "chat": {
        EMPTY: _EMPTY,
        ENDLESS: ("basic", "deepseek_ocr"),
        REFUSED: ("llava_next",),
        # a prompt opens thoughts, or an earlier reply loses them; in GPT-OSS it has another end, and
        # BLIP-2 writes another space before the reply
        REWRITTEN: (
            *("deepseek_r1_distill", "deepseekv3", "gptoss", *_NEMOTRON),
            *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "minicpmv45", "blip2"),
        ),
        # they take contents as lists only
        WHOLE: ("idefics3", "smolvlm"),
    },
    "call": {
        EMPTY: _EMPTY,
        REFUSED: (
            *("cohere", "deepseekv3", "gemma", "gemma3", "idefics3", "llava_next", "smolvlm"),
            *_DEEPSEEK_OF_VLLM,
        ),
        REWRITTEN: (*_NEMOTRON, "minicpmv45"),
        WHOLE: _WITHOUT_CALLS,
    },
    "text and call": {
        EMPTY: _EMPTY,
        REFUSED: ("cohere", "deepseekv3", "gemma", "gemma3", "llava_next", *_DEEPSEEK_OF_VLLM),
        # Gemma 4 moves the text behind the answer of the tool
        REWRITTEN: (*_GEMMA4, *_NEMOTRON, "minicpmv45"),
        WHOLE: (*_WITHOUT_CALLS, "idefics3", "smolvlm"),
    },
}
"""The templates with each outcome that is not `same`."""


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_goes_on_with_the_templates_own_text_but_for_those_that_are_listed(chat: str) -> None:
    found = {name: outcome(name, chat) for name in templates()}
    assert len(found) > 47
    others = {of: sorted(name for name in found if found[name] == of) for of in EXPECTED[chat]}
    assert others == {of: sorted(names) for of, names in EXPECTED[chat].items()}
    assert set(found.values()) == {SAME, *EXPECTED[chat]}
