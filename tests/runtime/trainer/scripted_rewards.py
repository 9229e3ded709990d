"""User code of jobs over the scripted engine: reward functions note every call, and may end the trainer, and
so may an agent."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from grpo_runtime.rewards.types import TRIAL_TEXT
from grpo_runtime.rollouts.frames import decode_frames


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


async def agent(client: Any, task: Any, answer: str) -> float:
    """Every other sample has two calls, with a letter of the answer between them, and may end the trainer
    there or behind its end, once another sample is on disk."""
    messages = [{"role": "user", "content": task.prompt}]
    reply = await client.chat.completions.create(model="policy", messages=messages)
    if task.sample_index % 2:
        if await is_killed_at("between calls"):
            kill_trainer()
        messages += [reply.choices[0].message, {"role": "user", "content": answer[0]}]
        await client.chat.completions.create(model="policy", messages=messages)
        if await is_killed_at("returned"):
            # behind the line that says so
            asyncio.get_running_loop().call_soon(kill_trainer)
    return float(task.sample_index)


async def failing_agent(client: Any, task: Any, answer: str) -> float:
    """As `agent`, but some of its episodes fail in every try: of some prompts the first, of some all but the
    last, by the answer, the latter by LEFT_OUT. FAILS_IN is the step in which that is so, or nothing for all.
    It notes its tries."""
    note(tried=task.seed)
    if os.environ["FAILS_IN"] in ("", str(newest_weights())):
        num_failing = {1: 1, int(os.environ["LEFT_OUT"]): 3}.get(ord(answer[0]) % 4, 0)
        if task.sample_index < num_failing:
            raise OSError("the game server is away")
    return await agent(client, task, answer)


def note(**what: Any) -> None:
    with Path(os.environ["SCRIPTED_LOG"]).open("a") as file:
        file.write(json.dumps(what) + "\n")


def kill_trainer() -> None:
    os.kill(os.getppid(), signal.SIGKILL)


async def is_killed_at(point: str) -> bool:
    """Whether the trainer is to end here, in this step or later; then a sample of it is on disk."""
    wanted, _, first = os.environ.get("SCRIPTED_KILL", "").partition(":")
    if wanted != point or newest_weights() < int(first):
        return False
    async with asyncio.timeout(60):
        while not has_a_sample(int(first)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.005)
    return True


def newest_weights() -> int:
    """The step whose weights the engine has."""
    lines = map(json.loads, Path(os.environ["SCRIPTED_LOG"]).read_text().splitlines())
    return max(line["sync"] for line in lines if "sync" in line)


def has_a_sample(first: int) -> bool:
    """Whether one is in the journal of this step or a later one."""
    for path in Path(os.environ["SCRIPTED_LOG"]).parent.glob("output/journal/step-*/*.journal"):
        frames, _ = decode_frames(path.read_bytes())
        if int(path.parent.name.removeprefix("step-")) >= first and any(
            frame.header["kind"] == "generated" for frame in frames
        ):
            return True
    return False
