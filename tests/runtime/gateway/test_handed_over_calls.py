"""Calls of agents that engines hand over: the gateway over a fleet of fake engines, to the official client of
OpenAI's API."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from chats import ADD, END, chat_model, chat_tokenizer, session, tokens, written
from fake_engine_server import FakeEngine
from fleet_builder import fleet_of, hang, until

from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.engines.fleet.core import FleetCore
from grpo_runtime.engines.fleet.settings import Pause
from grpo_runtime.engines.routes import SAMPLE_PATH
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.session import Session
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, Segment

pytestmark = pytest.mark.usefixtures("pod_environment")
USER = {"role": "user", "content": "Guess."}
CALL = '<tool_call>\n{"name":"add","arguments":{"b":2,"a":1}}\n</tool_call>' + END
SAMPLING = SamplingSpec(temperature=1.0, max_tokens=256)


class OfFleet:
    """The engines of a fleet in the loop of the test."""

    is_concurrent = True

    def __init__(self, fleet: FleetCore) -> None:
        self._fleet = fleet

    async def generate(self, requests: Sequence[GenerateRequest], *, stays_awake: bool) -> list[Rollout]:
        assert stays_awake
        return await self._fleet.generate(requests)


class Agents:
    """Agents whose calls reach one engine, which hands over the first `len(behind)` of its calls, behind so
    many tokens each. `says` makes what the policy says of the text of a prompt."""

    def __init__(self, engine: FakeEngine, fleet: FleetCore, *, behind: Sequence[int]) -> None:
        self.engine = engine
        self.fleet = fleet
        self._behind = behind
        self._gateway = Gateway(chat_model(), TurnSampler(OfFleet(fleet)))  # type: ignore[arg-type]
        self._app = application(self._gateway, given={})

    async def play(self, found: Session, agent: Callable[[httpx.AsyncClient, str], Awaitable[Any]]) -> Any:
        """What the agent returns, which gets a client of HTTP and its key."""

        async def with_client(key: str) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://gateway", headers=headers
            ) as http:
                return await agent(http, key)

        playing = asyncio.ensure_future(self._gateway.play(found, with_client))
        for number, num_tokens in enumerate(self._behind, start=1):
            await self.until_asked(number)
            self.engine.vllm.num_handed_over = num_tokens
            await self.engine.vllm.hand_over()
        return await playing

    async def until_asked(self, number: int) -> None:
        """Return when the engine has the call of this number, from 1."""
        vllm = self.engine.vllm
        await until(lambda: len(vllm.asked) == number and vllm.num_sampling == 1)


@asynccontextmanager
async def agents(says: Callable[[str], str], *, behind: Sequence[int]) -> AsyncIterator[Agents]:
    engine = FakeEngine("engine-0")
    vllm = engine.vllm
    vllm.stages = True

    async def sample() -> None:
        if len(vllm.asked) <= len(behind):
            await hang()

    vllm.says = lambda prompt_ids: written(says(str(chat_tokenizer().decode(prompt_ids))))
    vllm.during[SAMPLE_PATH] = sample
    settings: dict[str, Any] = {"is_asynchronous": True, "sampling": SAMPLING, "evaluation": SAMPLING}
    async with fleet_of(engine, pause=Pause(PauseMode.ABORT), **settings) as fleet:
        yield Agents(engine, fleet, behind=behind)


def client_of(http: httpx.AsyncClient, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key, base_url="http://gateway/v1", http_client=http)


async def test_a_call_that_is_handed_over_twice_is_answered_once_with_all_of_its_tokens():
    async def agent(http: httpx.AsyncClient, key: str) -> Any:
        return await client_of(http, key).chat.completions.create(
            model="policy", messages=[USER], logprobs=True, extra_body={"return_token_ids": True}
        )

    found = session()
    async with agents(lambda _: f"Seven, or less.{END}", behind=[3, 2]) as played:
        answer = await played.play(found, agent)
        asked = played.engine.vllm.asked
        assert played.fleet.num_handed_over == 2
    [choice] = answer.choices
    ids = written(f"Seven, or less.{END}")
    assert (choice.message.content, choice.finish_reason) == ("Seven, or less.", "stop")
    assert choice.model_extra["token_ids"] == list(ids)
    assert [each.logprob for each in choice.logprobs.content] == [-1.0] * len(ids)
    assert answer.usage.completion_tokens == len(ids)
    assert [(call.num_so_far, call.parameters["max_tokens"]) for call in asked] == [
        (0, 256),
        (3, 253),
        (5, 251),
    ]
    assert len({call.parameters["seed"] for call in asked}) == 3
    [rollout] = found.record.rollouts()
    assert (rollout.completion_ids, rollout.is_terminated) == (ids, True)
    assert rollout.rollout_logprobs == (-1.0,) * len(ids)
    assert rollout.segments == tuple(
        Segment("engine-0", start, end) for start, end in ((0, 3), (3, 5), (5, len(ids)))
    )
    assert (rollout.engine, found.record.num_calls, found.record.num_sampled) == ("engine-0", 1, len(ids))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_of_a_tool_is_read_in_the_whole_of_what_was_said(*, is_streamed: bool):
    """It is handed over in the middle of the name of the tool. What is streamed has every text once."""

    async def agent(http: httpx.AsyncClient, key: str) -> Any:
        options: dict[str, Any] = {"model": "policy", "messages": [USER], "tools": [ADD]}
        create = client_of(http, key).chat.completions.create
        if not is_streamed:
            choice = (await create(**options)).choices[0]
            return [choice.message], [choice.finish_reason]
        chunks = [chunk async for chunk in await create(**options, stream=True)]
        choices = [choice for chunk in chunks for choice in chunk.choices]
        return [choice.delta for choice in choices], [choice.finish_reason for choice in choices]

    said = f"Well. {CALL}"
    found = session()
    behind = len(written(said[: said.index("dd")]))
    async with agents(lambda _: said, behind=[behind]) as played:
        messages, finish_reasons = await played.play(found, agent)
    assert "".join(message.content or "" for message in messages) == "Well."
    [call] = [call for message in messages for call in message.tool_calls or []]
    assert (call.function.name, call.function.arguments) == ("add", '{"b": 2, "a": 1}')
    assert finish_reasons == ([None, "tool_calls"] if is_streamed else ["tool_calls"])
    [rollout] = found.record.rollouts()
    assert rollout.completion_ids == written(said)
    assert [segment.end for segment in rollout.segments] == [behind, len(written(said))]
    assert found.num_unreadable_calls == 0


async def test_each_turn_of_a_chat_has_its_own_segments():
    """The second of three turns is handed over."""

    def says(prompt: str) -> str:
        return f"{prompt.count('higher')}23{END}"

    async def agent(http: httpx.AsyncClient, key: str) -> None:
        messages: list[Any] = [USER]
        for _ in range(3):
            answer = await client_of(http, key).chat.completions.create(model="policy", messages=messages)
            messages += [answer.choices[0].message, {"role": "user", "content": "higher"}]

    found = session()
    async with agents(says, behind=[]) as played:
        vllm = played.engine.vllm

        async def sample() -> None:
            if len(vllm.asked) == 2:
                await hang()

        vllm.during[SAMPLE_PATH] = sample
        playing = asyncio.ensure_future(played.play(found, agent))
        await played.until_asked(2)
        vllm.num_handed_over = 2
        await vllm.hand_over()
        await playing
    [rollout] = found.record.rollouts()
    first, second, third = found.turns
    assert [turn.end - turn.start for turn in (first, second, third)] == [4, 4, 4]
    assert rollout.segments == (
        Segment("engine-0", second.start, second.start + 2),
        Segment("engine-0", second.start + 2, second.end),
    )
    assert rollout.num_sampled == 12


async def test_a_call_that_is_handed_over_has_at_most_the_tokens_that_it_asked_for():
    async def agent(http: httpx.AsyncClient, key: str) -> Any:
        prompt = list(tokens("<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"))
        body = {"token_ids": prompt, "sampling_params": {"max_tokens": 5}}
        return (await http.post("/inference/v1/generate", json=body)).json()

    async with agents(lambda _: f"Seven, or less.{END}", behind=[3]) as played:
        answer = await played.play(session(), agent)
        assert [call.parameters["max_tokens"] for call in played.engine.vllm.asked] == [5, 2]
    [choice] = answer["choices"]
    assert (choice["token_ids"], choice["finish_reason"]) == (list(written("Seven")), "length")
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-1.0] * 5


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"is_trained": False}, {"response_format": {"type": "json_object"}}),
        ({"is_trained": False}, {"presence_penalty": 1.0}),
        ({"is_evaluation": True}, {}),
    ],
    ids=["a grammar", "a penalty", "an evaluation"],
)
async def test_what_cannot_go_on_begins_anew_within_its_request(more: dict[str, bool], asked: dict[str, Any]):
    async def agent(http: httpx.AsyncClient, key: str) -> str | None:
        answer = await client_of(http, key).chat.completions.create(model="policy", messages=[USER], **asked)
        return answer.choices[0].message.content

    found = session(**more)
    async with agents(lambda _: f"[1, 2]{END}", behind=[3]) as played:
        assert await played.play(found, agent) == "[1, 2]"
        first, second = played.engine.vllm.asked
        assert first == second
        assert (played.fleet.num_handed_over, played.fleet.num_resent) == (0, 1)
    [rollout] = found.record.rollouts()
    assert (rollout.completion_ids, rollout.segments) == (written(f"[1, 2]{END}"), ())


async def test_an_agent_that_is_cancelled_while_its_call_goes_on_leaves_nothing():
    async def agent(http: httpx.AsyncClient, key: str) -> None:
        await client_of(http, key).chat.completions.create(model="policy", messages=[USER])

    found = session()
    async with agents(lambda _: f"Seven{END}", behind=[2]) as played:
        vllm = played.engine.vllm
        vllm.during[SAMPLE_PATH] = hang
        playing = asyncio.ensure_future(played.play(found, agent))
        await played.until_asked(2)
        assert vllm.asked[1].num_so_far == 2
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert played.fleet.generation() is None
    assert (found.record.num_calls, found.record.rollouts(), found.turns) == (0, [], [])
