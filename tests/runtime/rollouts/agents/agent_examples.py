"""Agents of the tests, as users write them."""

import asyncio
import contextlib
import fcntl
import json
import math
import os
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

KEYS, HAS_KEY, HAS_ASKED, HAS_CLOSED = [], asyncio.Event(), asyncio.Event(), asyncio.Event()

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


async def guesses(client, task, high):
    """A game: the policy guesses until it has the number, at most three times."""
    messages = [{"role": "user", "content": task.prompt}]
    for _ in range(3):
        answer = await client.chat.completions.create(model="policy", messages=messages, temperature=0.1)
        guess = answer.choices[0].message.content
        if guess == high:
            return 1.0
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": "higher"}]
    return 0.0


async def adds(client, prompt):
    """A loop with a tool, whose messages are sent back as the client gives them."""
    messages = [{"role": "user", "content": prompt}]
    while True:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
        message = answer.choices[0].message
        if not message.tool_calls:
            return
        messages.append(message)
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            content = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def forgets(client, prompt):
    """Each of its calls is a chat of its own."""
    for number in range(2):
        chat = [{"role": "user", "content": f"{prompt} {number}"}]
        await client.chat.completions.create(model="policy", messages=chat)


async def asks_a_judge(client, untrained, prompt):
    """The judge is the policy too, at another temperature."""
    chat = [{"role": "user", "content": prompt}]
    answer = await client.chat.completions.create(model="policy", messages=chat)
    chat = [{"role": "user", "content": f"Score {answer.choices[0].message.content}."}]
    judged = await untrained.chat.completions.create(model="policy", messages=chat, temperature=0)
    return float(judged.choices[0].message.content)


async def forgets_once(client, prompt):
    await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": prompt}])


async def closes_its_clients(client, untrained, task):
    """The second sample asks when the first has closed its clients."""
    if task.sample_index == 1:
        await HAS_CLOSED.wait()
    async with client, untrained:
        await forgets_once(client, task.prompt)
    await client.close()
    HAS_CLOSED.set()


async def calls_nothing(client):
    pass


async def tells_its_state(client, prompt):
    """Two chats, of which one goes on."""
    chat = [{"role": "user", "content": prompt}]
    await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hello."}])
    answer = await client.chat.completions.create(model="policy", messages=chat)
    said = answer.choices[0].message.content
    chat += [{"role": "assistant", "content": f" {said}"}, {"role": "user", "content": "higher"}]
    await client.chat.completions.create(model="policy", messages=chat)
    return {"state": {"guesses": [said]}}


async def returns_text(client, prompt):
    chat = [{"role": "user", "content": prompt}]
    await client.chat.completions.create(model="policy", messages=chat)
    return "1"


async def hangs(client):
    await asyncio.Event().wait()


async def waits_after_its_call(client, prompt):
    await forgets_once(client, prompt)
    await asyncio.Event().wait()


async def blocks_after_its_call(client, prompt):
    await forgets_once(client, prompt)
    threading.Event().wait()


async def ends_its_process(client):
    os._exit(3)


async def goes_on_for_ever(client, prompt):
    while True:
        chat = [{"role": "user", "content": prompt}]
        await client.chat.completions.create(model="policy", messages=chat)


async def reads_its_answer(client, prompt):
    """It raises where that is no number that it knows."""
    chat = [{"role": "user", "content": prompt}]
    answer = await client.chat.completions.create(model="policy", messages=chat)
    return {"1234": 1.0}[answer.choices[0].message.content]


async def fails_once(client, task):
    """The first try of the second sample fails."""
    marker = Path(task.columns["marker"])
    chat = [{"role": "user", "content": task.prompt}]
    await client.chat.completions.create(model="policy", messages=chat)
    if task.sample_index == 1 and not marker.exists():  # noqa: ASYNC240
        marker.touch()  # noqa: ASYNC240
        raise OSError("the tool is away")


async def plays_what_the_row_says(client, untrained, task, high):
    """One of the others, which the column `plays` names."""
    play = task.columns["plays"]
    if play == "guesses":
        return await guesses(client, task, high)
    if play == "asks_a_judge":
        return await asks_a_judge(client, untrained, task.prompt)
    return await globals()[play](client, task.prompt)


async def looks_for_tokens(client, prompt, places, data):
    """How often it finds a token of the job: by itself, by a process, through a link, under another name, in
    the trainer's process and environment, in its own environment. It may read the data of the job."""
    await forgets_once(client, prompt)
    assert reads(data)
    trainer = f"/proc/{os.getppid()}"
    found = ["of the job" in " ".join(os.environ.values()), reads(f"{trainer}/environ")]
    for place in places:
        aside = Path(tempfile.mkdtemp())
        (aside / "link").symlink_to(place)
        with contextlib.suppress(OSError):
            os.link(place, aside / "name")
        found += [reads(path) for path in (place, aside / "link", aside / "name", f"{trainer}/root{place}")]
        cat = subprocess.run(["cat", place], check=False, capture_output=True)  # noqa: ASYNC221
        found.append(cat.returncode == 0)
    return float(sum(found))


def reads(path):
    try:
        return bool(Path(path).read_bytes())
    except OSError:
        return False


async def ends_as_it_likes(client, task):
    """Writes over its worker's protocol, as the end of its own episode. The column `marker` is a file; as
    long as there is none, its reward is none that an agent may have."""
    marker = Path(task.columns["marker"])
    chat = [{"role": "user", "content": task.prompt}]
    await client.chat.completions.create(model="policy", messages=chat)
    reward = 0.5 if marker.exists() else math.nan  # noqa: ASYNC240
    marker.touch()  # noqa: ASYNC240
    end = {"is_done": True, "reward": reward, "token_ids": [1, 2], "logprobs": [0.0, 0.0]}
    # it does not know its own number, and those of the others are as good
    lines = "".join(json.dumps({"id": number, **end}) + "\n" for number in range(2))
    os.write(pipe_of_answers(), lines.encode())
    await asyncio.Event().wait()


def pipe_of_answers():
    """The only one beside stdout and stderr that this process writes into."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            is_written = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if number > 2 and is_written and stat.S_ISFIFO(os.fstat(number).st_mode):
                return number
    raise LookupError("no pipe")


async def takes_the_key_of_the_other(client, task):
    """The second sample asks with the key of the first, which waits for it."""
    chat = [{"role": "user", "content": f"{task.prompt} {task.sample_index}"}]
    if task.sample_index == 0:
        KEYS.append(client.api_key)
        HAS_KEY.set()
        await client.chat.completions.create(model="policy", messages=chat)
        await HAS_ASKED.wait()
    else:
        await client.chat.completions.create(model="policy", messages=chat)
        await HAS_KEY.wait()
        other = client.with_options(api_key=KEYS[0])
        await other.chat.completions.create(model="policy", messages=chat)
        HAS_ASKED.set()


async def has_a_typo_in_its_tool(client, prompt):
    chat = [{"role": "user", "content": prompt}]
    answer = await client.chat.completions.create(model="policy", messages=chat, tools=[ADD])
    for call in answer.choices[0].message.tool_calls or ():
        raise AttributeError(f"{call.function.name} has no arguement")


class Adder:
    """Tools, of which one has a typo."""

    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One number.
            b: Another.
        """
        return a + b

    def open(self, path: str) -> str:
        """Read a file.

        Args:
            path: Where it is.
        """
        return Path(path).read_text()

    def get_reward(self) -> float:
        return 0.5


class MistypedAdder(Adder):
    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One number.
            b: Another.
        """
        return a + c  # noqa: F821


class AdderWithoutReward(Adder):
    def get_reward(self) -> float:
        raise LookupError("no score was kept")
