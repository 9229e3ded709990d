"""User code of jobs over the scripted engine: reward functions note every call, and may end the trainer."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from grpo_runtime.rewards.types import TRIAL_TEXT


def noted(
    *, prompts: Any, completions: list[str], answer: list[str], trainer_state: Any, log_metric: Any, **_: Any
) -> list[float | None]:
    """The share of right characters; none for a completion that begins with an a. Its trial before the first
    step is no call of a step."""
    if set(completions) == {TRIAL_TEXT}:
        return [0.0] * len(completions)
    step = trainer_state.global_step
    log = Path(os.environ["SCRIPTED_LOG"])
    with log.open("a") as file:
        file.write(json.dumps({"scored": step, "prompts": prompts}) + "\n")
    # in asynchronous training it is a matter of chance in which step a group begins
    num_before = log.read_text().count('"scored"') - 1
    if os.environ.get("SCRIPTED_KILL") in (f"reward:{step}", f"reward call:{num_before}"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # this process ends with the one that is killed
    log_metric("mine/length", sum(map(len, completions)))
    return [
        None
        if completion.startswith("a")
        else sum(map(str.__eq__, completion, right)) / len(right) + len(completion) / 100
        for completion, right in zip(completions, answer, strict=True)
    ]


def same_for_some(*, prompts: list[str], **arguments: Any) -> list[float | None]:
    """As `noted`, but the completions of every other prompt all have the same reward."""
    rewards = noted(prompts=prompts, **arguments)
    return [0.0] * len(rewards) if sum(map(ord, prompts[0])) % 2 else rewards


def held(*, completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """In step HELD_IN it makes the file HELD_MARK, and waits for its end."""
    if str(trainer_state.global_step) == os.environ.get("HELD_IN"):
        Path(os.environ["HELD_MARK"]).touch()
        signal.pause()
    return [float(len(completion)) for completion in completions]


def wants_a_column(*, completions: list[str], solution: list[str]) -> list[float]:
    return [float(completion == right) for completion, right in zip(completions, solution, strict=True)]


def raises_after_two_steps(*, completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    if trainer_state.global_step == 2:
        raise KeyError("answers")
    return [float(len(completion)) for completion in completions]


async def turns(conversation: Any, answer: str) -> None:
    """A rollout function: every other sample has two turns, with a letter of the answer between them."""
    await conversation.sample(max_tokens=1)
    if conversation.sample_index % 2:
        conversation.add(answer[0])
        await conversation.sample()
