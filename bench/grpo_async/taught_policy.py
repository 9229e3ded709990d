"""`builtin://tiny`, taught to write the answer of a task again and again half of the time, and anything
otherwise: what is left to learn is when. From random weights a policy would take hundreds of steps to find
an answer of that length.
"""

import random
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers.utils.logging import disable_progress_bar

from grpo_async.cases import taught_folder
from grpo_async.long_answers import MAX_TOKENS
from grpo_bench.made_policy import made_policy
from grpo_runtime.data.tasks import TASKS
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import CHARACTERS, write_tiny_model

_STEPS, _LESSONS, _LEARNING_RATE, _SEED = 250, 16, 3e-3, 1
_RIGHT = 0.5
"""The share of lessons that have the answer."""


def made_taught_policy(task: str) -> Path:
    """The folder with the policy of a task, made if it is missing."""
    return made_policy(taught_folder(task), lambda into: write_taught_policy(into, task=task))


def write_taught_policy(into: Path, *, task: str, steps: int = _STEPS) -> None:
    """Make the policy of a task: the same bytes each time on one machine."""
    disable_progress_bar()
    write_tiny_model(into)
    tokenizer, model = load_tokenizer(into), load_policy(into, dtype="float32")
    num_threads = torch.get_num_threads()
    # sums of another number of threads are other sums
    torch.set_num_threads(1)
    try:
        draw = random.Random(_SEED)
        rows = [(prompt, str(answer)) for prompt, answer in TASKS[task]()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
        for _ in range(steps):
            lessons = [_lesson(rows, draw=draw) for _ in range(_LESSONS)]
            ids = [
                tokenizer(prompt + said, add_special_tokens=False)["input_ids"] for prompt, said in lessons
            ]
            # all prompts of a task have one length, and so have all lessons
            batch, begin = torch.tensor(ids), len(lessons[0][0])
            logits = model(batch[:, :-1]).logits[:, begin - 1 :]
            loss = cross_entropy(logits.flatten(0, 1), batch[:, begin:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        torch.set_num_threads(num_threads)
    save_policy(model, tokenizer=tokenizer, into=into)


def _lesson(rows: Sequence[tuple[str, str]], *, draw: random.Random) -> tuple[str, str]:
    """A prompt and what is said."""
    prompt, answer = draw.choice(rows)
    if draw.random() < _RIGHT:
        return prompt, "".join(islice(cycle(answer), MAX_TOKENS))
    return prompt, "".join(draw.choices(CHARACTERS[1:], k=MAX_TOKENS))
