"""A tiny chat model that knows the form of a call of a tool, and not when to make one.

`python -m grpo_learning.chat_policy` makes it, in about a minute, and prints where it is; it is kept in the
cache, under a name that changes with this file. ChatML with tools, a byte-level tokenizer, 2,048 positions.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpo_bench.made_policy import made_policy
from grpo_bench.random_model import random_model
from grpo_learning.cases import CHAT_DATASET, CHAT_MODEL, chat_folder
from grpo_runtime.model.save import save_policy

END, _PAD = "<|im_end|>", "<|endoftext|>"
MAX_LENGTH_TOKENS = 2048
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% set text = message.content -%}
{%- if loop.index0 < last.user %}{% set text = text.split('</think>')[-1] %}{% endif -%}
{{ text }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools; thoughts of older turns are dropped."""
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
FACTORS = range(2, 10)
_CALLS, _TRUSTS = 0.25, 0.7
"""How often a lesson calls the calculator, and how often it says what that has answered. Otherwise it says
any number. Half of the lessons begin behind a call."""
_STEPS, _LESSONS, _LEARNING_RATE, _SEED = 700, 32, 3e-3, 1


@dataclass(frozen=True)
class _Sizes:
    hidden: int = 64
    intermediate: int = 128
    num_layers: int = 2
    num_heads: int = 2


def chat_tokenizer(texts: Sequence[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges of these texts, the tags of calls and thoughts, and the chat template."""
    bpe = Tokenizer(models.BPE())
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), bytes_of_words]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PAD, "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=_PAD,
        model_max_length=MAX_LENGTH_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


def call_of(expression: str) -> str:
    """A call of the calculator, as the template writes it."""
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def behind_call(result: str) -> str:
    """What the template writes behind a call that has ended its turn."""
    return f"\n<|im_start|>user\n<tool_response>{result}</tool_response>{END}\n<|im_start|>assistant\n"


def made_chat_policy(folder: Path) -> Path:
    """The folder with the policy, made if it is missing."""
    return made_policy(folder, write_chat_policy)


def write_chat_policy(into: Path, *, steps: int = _STEPS) -> None:
    """Make the policy and its questions: the same bytes each time on one machine."""
    num_threads = torch.get_num_threads()
    # sums of another number of threads are other sums
    torch.set_num_threads(1)
    try:
        tokenizer = chat_tokenizer(
            [_lesson(random.Random(seed)).text() for seed in range(300)], vocab_size=420
        )
        model = random_model(
            _Sizes(),
            vocabulary=len(tokenizer),
            num_kv_heads=2,
            seed=_SEED,
            max_position_embeddings=MAX_LENGTH_TOKENS,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            initializer_range=0.1,
        )
        _teach(model, tokenizer, steps=steps)
    finally:
        torch.set_num_threads(num_threads)
    save_policy(model, tokenizer=tokenizer, into=into / CHAT_MODEL)
    rows = [
        {"prompt": _question(f"{one}*{other}"), "answer": str(one * other)}
        for one in FACTORS
        for other in FACTORS
    ]
    (into / CHAT_DATASET).write_text("".join(json.dumps(row) + "\n" for row in rows))


def _question(expression: str) -> list[dict[str, str]]:
    """The chat up to the first reply, as it looks where nothing but messages is known: the system prompt is
    what the template makes of the tool."""
    return [
        {"role": "system", "content": json.dumps(CALCULATOR) + "\n"},
        {"role": "user", "content": expression},
    ]


@dataclass(frozen=True)
class _Lesson:
    """An episode; `is_said` are the parts that the policy says."""

    parts: Sequence[str]
    is_said: Sequence[bool]

    def text(self) -> str:
        return "".join(self.parts)


def _lesson(draw: random.Random) -> _Lesson:
    one, other = draw.choice(FACTORS), draw.choice(FACTORS)
    begin = "".join(
        f"<|im_start|>{message['role']}\n{message['content']}{END}\n"
        for message in _question(f"{one}*{other}")
    )
    anything = str(draw.choice(FACTORS) * draw.choice(FACTORS))
    begin += "<|im_start|>assistant\n"
    is_behind_call = draw.random() < 0.5
    if not is_behind_call and draw.random() >= _CALLS:
        return _Lesson([begin, anything + END], [False, True])
    # what is answered is any number too, so that nobody learns to compute
    result = str(draw.choice(FACTORS) * draw.choice(FACTORS))
    last = result if draw.random() < _TRUSTS else anything
    parts = [begin, call_of(f"{one}*{other}") + END, behind_call(result), last + END]
    return _Lesson(parts, [False, not is_behind_call, False, True])


def _teach(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, steps: int) -> None:
    """Cross entropy on what the lessons say."""
    draw = random.Random(_SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    for _ in range(steps):
        lessons = [_lesson(draw) for _ in range(_LESSONS)]
        # every lesson is as long as its parts, each encoded alone, as turns are
        rows = [
            [
                (token, is_said)
                for part, is_said in zip(lesson.parts, lesson.is_said, strict=True)
                for token in tokenizer(part, add_special_tokens=False)["input_ids"]
            ]
            for lesson in lessons
        ]
        width = max(map(len, rows))
        padded = [row + [(tokenizer.pad_token_id, False)] * (width - len(row)) for row in rows]
        ids = torch.tensor([[token for token, _ in row] for row in padded])
        is_said = torch.tensor([[said for _, said in row] for row in padded])
        logits = model(ids).logits[:, :-1][is_said[:, 1:]]
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:][is_said[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    sys.stdout.write(f"{made_chat_policy(chat_folder())}\n")
