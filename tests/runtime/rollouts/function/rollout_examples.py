"""Rollout functions as users write them, right and wrong."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


async def one_turn(conversation: Any) -> None:
    await conversation.sample()


async def with_a_tool(conversation: Any, answer: str) -> None:
    """Turns of one token with what the tool says between them; the second sample takes one turn less."""
    for _ in range(2 - conversation.sample_index):
        turn = await conversation.sample(max_tokens=1)
        conversation.add(f"{turn.text}{answer}")
    await conversation.sample()


async def ends_with_a_tool(conversation: Any) -> None:
    await conversation.sample(max_tokens=1)
    conversation.add([7, 8])


async def gets_nothing_from_a_tool(conversation: Any) -> None:
    await conversation.sample(max_tokens=1)
    conversation.add([7, 8, 9, 7, 8, 9, 7, 8, 9])
    conversation.add([])


async def adds_half_a_character(conversation: Any) -> None:
    await conversation.sample(max_tokens=1)
    conversation.add("\ud83d")


async def for_ever(conversation: Any) -> None:
    while True:
        conversation.add("!")
        await conversation.sample(max_tokens=1)


async def tells_what_it_got(conversation: Any, **columns: Any) -> None:
    turn = await conversation.sample(max_tokens=2)
    expected = (conversation.prompt, conversation.prompt_ids, conversation.columns, columns["answer"])
    assert expected == ("3+4", [23, 15, 24], {"answer": "7"}, "7"), expected
    assert columns["prompt"] == "3+4"
    assert [len(turn.token_ids), len(turn.logprobs), len(turn.text)] == [2, 2, 2]
    conversation.add(str(conversation.seed % 10))


async def adds_what_no_tokenizer_has(conversation: Any) -> None:
    conversation.add([99])
    await conversation.sample()


async def fills_the_room(conversation: Any) -> None:
    conversation.add("!" * 100)
    await conversation.sample()


async def raises(conversation: Any) -> None:
    await conversation.sample(max_tokens=1)
    raise ValueError("the tool is gone")


def is_first_call() -> bool:
    """Of all processes that run it."""
    try:
        Path(os.environ["HAS_FAILED"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def fails_once(conversation: Any, answer: str) -> None:
    """As `with_a_tool`, but the first sample fails once, when the other one is finished."""
    for number in range(2 - conversation.sample_index):
        turn = await conversation.sample(max_tokens=1)
        if number == 1 and is_first_call():
            await conversation.sample(max_tokens=1)
            await {"raises": raises, "hangs": hangs, "dies": dies}[os.environ["FAILS"]](conversation)
        conversation.add(f"{turn.text}{answer}")
    await conversation.sample()


async def notes_and_raises(conversation: Any) -> None:
    note("a call\n")
    await raises(conversation)


def note(line: str) -> None:
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(line)


def num_notes() -> int:
    return len(Path(os.environ["CALLS"]).read_text())


async def leaves_a_task_when_it_fails(conversation: Any) -> None:
    """The task asks for a turn of its conversation as soon as that has been given up."""
    await conversation.sample(max_tokens=1)
    if is_first_call():
        LEFT.append(asyncio.create_task(adds_for_ever(conversation)))
        raise ValueError("the tool is gone")
    conversation.add("!")
    await conversation.sample(max_tokens=1)


LEFT: list[asyncio.Task[None]] = []


async def adds_for_ever(conversation: Any) -> None:
    while True:
        conversation.add("?")
        await conversation.sample(max_tokens=1)


async def hangs_when_it_is_cut(conversation: Any) -> None:
    try:
        while True:
            await conversation.sample(max_tokens=1)
    finally:
        if is_first_call():
            time.sleep(60)  # noqa: ASYNC251


async def serve_in_the_second_turn(answer: Callable[..., Awaitable[None]]) -> None:
    """Notes its port in CALLS."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    LEFT.append(asyncio.create_task(server.serve_forever()))
    note(str(server.sockets[0].getsockname()[1]))


async def answers_while_it_waits(conversation: Any) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    await conversation.sample(max_tokens=1)
    await serve_in_the_second_turn(answer)
    await conversation.sample(max_tokens=1)


async def gives_up_a_turn(conversation: Any) -> None:
    """It ends while the turn is sampled, and only then hangs up."""
    is_asked: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        is_asked.set_result(writer)

    await conversation.sample(max_tokens=1)
    await serve_in_the_second_turn(answer)
    turn = asyncio.create_task(conversation.sample(max_tokens=1))
    writer = await is_asked
    turn.cancel()
    writer.close()


HAPPENED: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""In this process."""


async def waits_for_the_second_sample(conversation: Any) -> None:
    """The tool of the first sample answers once the second one needs no other turn."""
    await conversation.sample(max_tokens=1)
    if conversation.sample_index == 0:
        await HAPPENED["the second sample needs no turn"].wait()
    else:
        await conversation.sample(max_tokens=1)
        await conversation.sample(max_tokens=1)
        asyncio.get_running_loop().call_soon(HAPPENED["the second sample needs no turn"].set)
        return
    await conversation.sample(max_tokens=1)


FAILURES: list[str] = []


async def waits_for_two_failures(conversation: Any, answer: str) -> None:
    await conversation.sample(max_tokens=1)
    if answer == "raises":
        FAILURES.append(answer)
        if len(FAILURES) == 2:
            HAPPENED["two failures"].set()
        raise ValueError("the tool is gone")
    await HAPPENED["two failures"].wait()
    await conversation.sample(max_tokens=1)


async def dies_beside_another(conversation: Any, answer: str) -> None:
    await conversation.sample(max_tokens=1)
    num_deaths = num_notes()
    if answer == "dies":
        if num_deaths < 2:
            await HAPPENED["the other waits"].wait()
        note("x")
        os._exit(3)
    if num_deaths < 2:
        HAPPENED["the other waits"].set()
        await waits(conversation)
    await conversation.sample(max_tokens=1)


async def notes_its_process(conversation: Any, answer: str) -> None:
    note(f"{os.getpid()}\n")
    if answer == "samples":
        await conversation.sample(max_tokens=1)
        return
    turn = await conversation.sample(max_tokens=2)
    assert len(turn.token_ids) == 2
    if is_first_call():
        await {"blocks": blocks, "dies": dies, "waits": waits}[answer](conversation)


def block() -> None:
    """Say so, and do nothing more."""
    Path(os.environ["BLOCKS"]).touch()
    time.sleep(60)


async def blocks(conversation: Any) -> None:
    block()


async def waits(conversation: Any) -> None:
    await asyncio.Event().wait()


async def waits_for_one_that_is_given_up(conversation: Any, answer: str) -> None:
    if answer == "waits":
        await HAPPENED["it was given up"].wait()
        await conversation.sample(max_tokens=2)
        return
    try:
        await conversation.sample(max_tokens=1)
    finally:
        HAPPENED["it was given up"].set()


async def samples_twice_at_once(conversation: Any) -> None:
    await asyncio.gather(conversation.sample(), conversation.sample())


async def hangs(conversation: Any) -> None:
    await conversation.sample(max_tokens=1)
    time.sleep(60)  # noqa: ASYNC251


async def dies(conversation: Any) -> None:
    os._exit(3)


def no_coroutine(conversation: Any) -> None:
    """Forgot `async`."""
