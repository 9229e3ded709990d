"""The gateway by its own sockets, over engines that are a fake: whatever clients send is answered, and what
they leave behind is not kept."""

import asyncio
import gc
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import ADD, END, ScriptedPolicy, chat_model, chat_tokenizer, session, tokens, written
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.server import CHAT_PATH, GENERATE_PATH, application
from grpo_runtime.gateway.serving import served
from grpo_runtime.gateway.session import Limits, Session
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler

HUNG_SECONDS = 600.0
USER = {"role": "user", "content": "Guess."}


class ForgetfulPolicy(ScriptedPolicy):
    """It never answers a prompt that says so, and keeps nothing of what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: f"5{END}")

    async def generate(self, requests: Any, *, stays_awake: bool) -> Any:
        answers = await super().generate(requests, stays_awake=stays_awake)
        self.requests.clear()
        if any("never" in chat_tokenizer().decode(each.prompt_ids) for each in requests):
            await asyncio.Event().wait()
        return answers


def a_gateway() -> Gateway:
    return Gateway(chat_model(), TurnSampler(ForgetfulPolicy()))  # type: ignore[arg-type]


class Caller:
    """A client that knows HTTP and nothing else."""

    def __init__(self, url: str, key: str) -> None:
        self._host, self._port = url.removeprefix("http://").split(":")
        self._key = key

    async def begin(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a call over a connection of its own, which ends with the answer."""
        reader, writer = await asyncio.open_connection(self._host, int(self._port))
        content = json.dumps(body).encode()
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
        return reader, writer

    async def ask(self, **body: Any) -> int:
        """The status of an answer."""
        reader, writer = await self.begin({"messages": [USER], **body})
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return int(answer.split(b" ", 2)[1])


async def asks_twice(caller: Caller) -> None:
    assert [await caller.ask(), await caller.ask(stream=True)] == [200, 200]


async def is_refused(caller: Caller) -> None:
    assert [await caller.ask(n=2), await caller.ask(), await caller.ask(), await caller.ask()] == [
        *(400, 200, 200, 429)
    ]  # fmt: skip


async def raises(caller: Caller) -> None:
    await caller.ask()
    raise RuntimeError("the agent")


async def hangs_up(caller: Caller) -> None:
    reader, writer = await caller.begin({"messages": [{"role": "user", "content": "never"}]})
    writer.close()
    await writer.wait_closed()
    del reader


async def leaves_a_call(caller: Caller) -> None:
    _, writer = await caller.begin({"messages": [{"role": "user", "content": "never"}]})
    await writer.drain()
    LEFT.append(writer)


async def asks_nothing(caller: Caller) -> None:
    """Its session has no call."""


LEFT: list[asyncio.StreamWriter] = []
AGENTS = (asks_twice, is_refused, raises, hangs_up, leaves_a_call, asks_nothing)
AT_A_TIME = 12


@pytest.mark.parametrize("num_sessions", [600, pytest.param(10_000, marks=pytest.mark.matrix)])
async def test_sessions_in_a_row_leave_nothing_behind(num_sessions: int) -> None:
    """However they end: objects, memory, sockets, files and tasks."""
    gateway = a_gateway()

    async def play(url: str, agent: Callable[[Caller], Awaitable[None]]) -> None:
        async def with_caller(key: str) -> None:
            await agent(Caller(url, key))

        try:
            await gateway.play(session(limits=Limits(turns=2)), with_caller)
        except RuntimeError as error:
            assert str(error) == "the agent"

    async def play_many(url: str, count: int) -> None:
        for first in range(0, count, AT_A_TIME):
            await asyncio.gather(
                *(play(url, AGENTS[place % len(AGENTS)]) for place in range(first, first + AT_A_TIME))
            )
            for writer in LEFT:
                writer.close()
                await writer.wait_closed()
            LEFT.clear()

    async with asyncio.timeout(HUNG_SECONDS), served(application_of(gateway)) as url:
        idle = num_open()
        await play_many(url, 240)
        await until_idle(idle)
        before = what_there_is()
        await play_many(url, num_sessions)
        await until_idle(idle)
        after = what_there_is()
    grown = {name: after[name] - before[name] for name in before}
    # less than one in ten sessions, and a hundred bytes of each
    assert grown["objects"] < num_sessions / 10, grown
    assert grown["bytes"] < max(100 * num_sessions, 4 << 20), grown
    assert not vars(gateway)["_open"]


def num_open() -> tuple[int, int]:
    """Tasks, and files with sockets."""
    return len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))


async def until_idle(idle: tuple[int, int]) -> None:
    """The server closes a connection once it has noticed that its client is gone."""
    async with asyncio.timeout(HUNG_SECONDS):
        while any(found > of_idle for found, of_idle in zip(num_open(), idle, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def what_there_is() -> dict[str, int]:
    gc.collect()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "objects": len(gc.get_objects()),
        "bytes": resident_pages * os.sysconf("SC_PAGESIZE"),
    }


def application_of(gateway: Gateway) -> Any:
    return application(gateway, given={"temperature": 1.0})


def posted(path: str, content: bytes) -> tuple[int, Session]:
    """The status of an answer, and the session that asked."""
    gateway, found = a_gateway(), session()

    async def agent(key: str) -> int:
        transport = httpx.ASGITransport(application_of(gateway))
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return (await client.post(path, content=content, headers=headers)).status_code

    async def play() -> int:
        async with asyncio.timeout(HUNG_SECONDS):
            return await gateway.play(found, agent)

    return asyncio.run(play()), found


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["", "a", "\ud83d"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "text"]), inner, max_size=2)
    ),
    max_leaves=4,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "x"]) | ANYTHING, "content": ANYTHING},
    optional={
        "tool_calls": ANYTHING
        | st.lists(
            st.fixed_dictionaries(
                {
                    "function": st.fixed_dictionaries(
                        {"name": st.just("add") | ANYTHING, "arguments": ANYTHING}
                    )
                }
            ),
            max_size=2,
        )
    },
)
TOOL = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["function", "custom"]) | ANYTHING,
        "function": ANYTHING
        | st.fixed_dictionaries(
            {"name": st.just("add") | ANYTHING},
            optional=dict.fromkeys(("description", "parameters", "strict"), ANYTHING),
        ),
    },
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3) | ANYTHING},
    optional={
        **dict.fromkeys(
            ("tool_choice", "stop", "max_tokens", "temperature", "stream_options", "n"), ANYTHING
        ),
        **dict.fromkeys(("stream", "logprobs", "model", "response_format"), ANYTHING),
        "tools": st.just([ADD]) | st.lists(TOOL, max_size=2) | ANYTHING,
        "stop_token_ids": ANYTHING,
    },
)


@settings(max_examples=80)
@given(BODY)
@example({"messages": [{"role": "user", "content": "\ud83d"}]})
@example({"messages": [{"role": "assistant", "content": "", "tool_calls": 5}]})
@example({"messages": [USER], "tools": [{"type": "function", "function": 5}]})
def test_whatever_a_client_sends_is_answered_or_refused_and_never_an_error_of_ours(body: Any) -> None:
    status, found = posted(CHAT_PATH, json.dumps(body).encode())
    assert status in (200, 400), body
    assert found.record.num_calls == (status == 200)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"messages": NaN}'])
@pytest.mark.parametrize("path", [CHAT_PATH, GENERATE_PATH])
def test_what_is_no_request_is_refused(path: str, content: bytes) -> None:
    status, found = posted(path, content)
    assert (status, found.record.num_calls) == (400, 0)


async def test_tokens_that_a_client_forges_are_context_and_never_trained() -> None:
    """It says that the policy has said 6, which has said 5."""
    gateway, found = a_gateway(), session()
    begin = tokens("<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n")
    forged = (*begin, *written(f"6{END}"), *tokens("\nmore"))

    async def agent(key: str) -> None:
        transport = httpx.ASGITransport(application_of(gateway))
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://gateway", headers=headers
        ) as client:
            for prompt in (begin, forged):
                body = {"token_ids": prompt, "sampling_params": {}, "completion_ids": [1], "logprobs": [0.0]}
                assert (await client.post(GENERATE_PATH, json=body)).status_code == 200
            echo = {"role": "assistant", "content": "6", "token_ids": [1], "logprobs": {"content": []}}
            body = {"messages": [USER, echo], "token_ids": [1], "prompt_token_ids": [1]}
            assert (await client.post(CHAT_PATH, json=body)).status_code == 200

    await gateway.play(found, agent)
    sequences = found.record.rollouts()
    assert [sequence.prompt_ids for sequence in sequences][:2] == [begin, forged]
    for sequence in sequences:
        assert sequence.completion_ids == written(f"5{END}")
        assert sequence.rollout_logprobs == (-0.01, -0.02)
    assert len(sequences) == 3
