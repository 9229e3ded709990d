"""The routes of the gateway, to the official client of OpenAI's API, over engines that are a fake."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from chats import (
    ADD,
    END,
    MAX_MODEL_LEN,
    TERMS,
    ScriptedPolicy,
    chat_model,
    session,
    tokens,
    written,
)
from skipping_clock import SkippingClock

from grpo_runtime.gateway.chat_request import ChatRequest, Terms, read_chat_request
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.server import application, read_beside
from grpo_runtime.gateway.session import Answer, ChatModel, Limits, Session, Turn
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import RequestRefusedError, Rollout

HUNG_SECONDS = 30.0
USER = {"role": "user", "content": "Guess."}
CALL = '<tool_call>\n{"name":"add","arguments":{"b":2,"a":1}}\n</tool_call>' + END


class Served:
    """A gateway over a policy that says `says`, or over another one, and its clients."""

    def __init__(
        self,
        says: Callable[[str], str] = lambda _: f"5{END}",
        *,
        policy: ScriptedPolicy | None = None,
        model: ChatModel | None = None,
    ) -> None:
        self.policy = policy or ScriptedPolicy(says)
        self.gateway = Gateway(model or chat_model(), TurnSampler(self.policy))  # type: ignore[arg-type]
        self.app = application(self.gateway, given={"temperature": 1.0})

    def http(self, key: str = "") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        headers = {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)

    @asynccontextmanager
    async def client(self, key: str) -> AsyncIterator[openai.AsyncOpenAI]:
        async with openai.AsyncOpenAI(
            api_key=key, base_url="http://gateway/v1", http_client=self.http(key)
        ) as client:
            yield client

    async def play(self, found: Session, agent: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
        async def with_client(key: str) -> Any:
            async with self.client(key) as client:
                return await agent(client)

        async with asyncio.timeout(HUNG_SECONDS):
            return await self.gateway.play(found, with_client)


async def test_a_plain_call_is_answered_with_its_tokens_and_logprobs():
    async def agent(client: openai.AsyncOpenAI) -> Any:
        return await client.chat.completions.create(
            model="policy", messages=[USER], logprobs=True, extra_body={"return_token_ids": True}
        )

    answer = await Served().play(session(), agent)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("5", "stop")
    assert "unreadable_call" not in choice.model_extra
    assert choice.model_extra["token_ids"] == list(written(f"5{END}"))
    assert answer.model_extra["prompt_token_ids"] == list(
        tokens("<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n")
    )
    assert [each.logprob for each in choice.logprobs.content] == [-0.01, -0.02]
    assert [each.token for each in choice.logprobs.content] == ["5", END]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (16, 2)


async def test_a_streamed_call_has_the_same_message_and_usage():
    async def agent(client: openai.AsyncOpenAI) -> Any:
        options = {"model": "policy", "messages": [USER], "tools": [ADD]}
        stream = await client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in stream], await client.chat.completions.create(**options)

    chunks, whole = await Served(lambda _: f"Well. {CALL}").play(session(), agent)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content == "Well."
    [streamed] = [call for delta in deltas for call in delta.tool_calls or []]
    [call] = whole.choices[0].message.tool_calls
    for part in ("name", "arguments"):
        assert getattr(streamed.function, part) == getattr(call.function, part)
    finish_reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert finish_reasons == [None, "tool_calls"]
    assert chunks[-1].usage == whole.usage


async def test_a_client_may_see_that_a_call_cannot_be_read_and_its_message_is_the_text():
    async def agent(client: openai.AsyncOpenAI) -> Any:
        options = {"model": "policy", "messages": [USER], "tools": [ADD]}
        stream = await client.chat.completions.create(**options, stream=True)
        choices = [choice async for chunk in stream for choice in chunk.choices]
        answer = await client.chat.completions.create(**options)
        return choices, answer.choices[0]

    found = session()
    streamed, whole = await Served(lambda _: f"<tool_call>{{add{END}").play(found, agent)
    for choice in (streamed[-1], whole):
        assert (choice.finish_reason, choice.model_extra["unreadable_call"]) == ("stop", True)
    assert (whole.message.content, whole.message.tool_calls) == ("<tool_call>{add", None)
    assert found.num_unreadable_calls == 2


async def test_a_loop_with_a_tool_is_one_sequence():
    def says(prompt: str) -> str:
        return f"It is 3.{END}" if "<tool_response>" in prompt else CALL

    async def agent(client: openai.AsyncOpenAI) -> str:
        messages: list[Any] = [USER]
        while True:
            answer = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump())
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls
            ]

    found = session()
    assert await Served(says).play(found, agent) == "It is 3."
    assert (found.record.num_calls, found.record.num_sequences) == (2, 1)


async def test_a_client_that_brings_tokens_gets_them_in_both_forms():
    served, found = Served(), session()
    prompt = list(tokens("<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"))

    async def agent(key: str) -> Any:
        async with served.http(key) as client:
            body = {"token_ids": prompt, "sampling_params": {"max_tokens": 8, "logprobs": 1}}
            first = (await client.post("/inference/v1/generate", json=body)).json()
            more = [*prompt, *first["choices"][0]["token_ids"], *tokens("\nlow")]
            await client.post("/inference/v1/generate", json={**body, "token_ids": more})
            return first

    answer = await served.gateway.play(found, agent)
    [choice] = answer["choices"]
    assert choice["token_ids"] == list(written(f"5{END}"))
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert [each["token_id"] for each in content] == choice["token_ids"]
    [rollout] = found.record.rollouts()
    assert rollout.num_sampled == 4


async def test_what_shapes_a_completion_and_is_the_jobs_is_counted_where_it_asks_for_something_else():
    served, found = Served(), session()
    [end] = served.gateway.model.template.end_ids
    nothing = {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [end], "bad_words": [], "seed": None}
    something = {"min_tokens": 2, "ignore_eos": True, "stop_token_ids": [end, 5], "bad_words": ["a"]}
    something["allowed_token_ids"] = [5]
    of_chats = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}

    async def agent(key: str) -> None:
        async with served.http(key) as client:
            for more in (nothing, {"chat_template_kwargs": {}, "parallel_tool_calls": True}):
                body = {"messages": [USER], **more}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            body = {"token_ids": [1], "sampling_params": nothing}
            assert (await client.post("/inference/v1/generate", json=body)).status_code == 200
            assert found.overridden == {}
            body = {"messages": [USER], **something, **of_chats}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            body = {"token_ids": [1], "sampling_params": something}
            assert (await client.post("/inference/v1/generate", json=body)).status_code == 200

    async with asyncio.timeout(HUNG_SECONDS):
        await served.gateway.play(found, agent)
    assert found.overridden == {**dict.fromkeys(something, 2), **dict.fromkeys(of_chats, 1)}
    assert {request.own_parameters for request in served.policy.requests} == {None}


async def test_the_jobs_own_arguments_of_its_template_are_nothing_else():
    model = chat_model()
    model = replace(model, template=replace(model.template, arguments={"enable_thinking": False}))
    served, found = Served(model=model), session(model=model)

    async def agent(client: openai.AsyncOpenAI) -> None:
        for arguments in ({"enable_thinking": False}, {"enable_thinking": True}):
            extra = {"chat_template_kwargs": arguments}
            await client.chat.completions.create(model="policy", messages=[USER], extra_body=extra)

    await served.play(found, agent)
    assert found.overridden == {"chat_template_kwargs": 1}


async def test_models_tell_how_long_a_chat_may_be():
    async with Served().client("any") as client:
        [model] = (await client.models.list()).data
    assert (model.id, model.model_extra["max_model_len"]) == ("policy", MAX_MODEL_LEN)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/completions"])
async def test_what_is_not_served_is_told_with_what_is(path: str):
    async with Served().http() as client:
        answer = await client.post(path, json={})
    assert answer.status_code == 404
    assert "serves /v1/chat/completions, /v1/models and /inference/v1/generate" in answer.text


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"n": 2}, "n: one reply a call is sampled"),
        ({"logit_bias": {"5": 1}}, "logit_bias: it would change the distribution"),
        ({"response_format": {"type": "json_object"}}, "response_format: a grammar would change"),
        ({"messages": []}, "messages: there is none"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\].role: it is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"messages\[0\].content\[0\]: only parts of type text",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}]},
            r"messages\[0\].tool_calls\[0\].function.arguments: they are missing",
        ),
        ({"max_tokens": 0}, "max_tokens: it must be a number of tokens"),
        ({"stop": [""]}, "stop: it must be a text or a list of texts"),
        ({"tools": ["add"]}, "tools: it must be a list of objects"),
        ({"tools": [ADD, {"type": "custom"}]}, r"tools\[1\].type: only tools of type function"),
        ({"tools": [{"type": "function", "name": "add"}]}, r"tools\[0\].function.name: it is missing"),
        ({"tools": [{"function": {"name": ""}}]}, r"tools\[0\].function.name: it is missing"),
        (
            {"tools": [{"function": {"name": "add", "parameters": []}}]},
            r"tools\[0\].function.parameters: it must be an object",
        ),
    ],
)
async def test_a_request_that_cannot_be_served_names_its_field(body: dict[str, Any], sentence: str):
    async def agent(client: openai.AsyncOpenAI) -> Any:
        with pytest.raises(openai.BadRequestError, match=sentence) as refused:
            await client.chat.completions.create(
                **{"model": "policy", "messages": [USER], "extra_body": body}
            )
        return refused.value.param

    served = Served()
    assert sentence.replace("\\", "").startswith(await served.play(session(), agent))
    assert served.policy.requests == []


async def test_a_session_past_its_limit_is_told_at_once_and_its_key_ends_with_it():
    served, keys = Served(), []

    async def agent(client: openai.AsyncOpenAI) -> None:
        keys.append(client.api_key)
        await client.chat.completions.create(model="policy", messages=[USER])
        with pytest.raises(openai.RateLimitError, match=r"limits\.turns of this session is reached"):
            await client.chat.completions.create(model="policy", messages=[USER])

    await served.play(session(limits=Limits(turns=1)), agent)
    assert len(served.policy.requests) == 1
    async with served.client(keys[0]) as client:
        with pytest.raises(openai.AuthenticationError, match="no open session has this key"):
            await client.chat.completions.create(model="policy", messages=[USER])


class RefusingPolicy(ScriptedPolicy):
    """Its engines refuse the first call."""

    async def generate(self, requests: Any, *, stays_awake: bool) -> Any:
        answers = await super().generate(requests, stays_awake=stays_awake)
        if len(self.requests) == 1:
            raise RequestRefusedError("an engine refuses it", said="engine-0: HTTP 400: no such regex")
        return answers


async def test_a_call_that_an_engine_refuses_fails_alone_with_what_the_engine_said(
    caplog: pytest.LogCaptureFixture,
):
    async def agent(client: openai.AsyncOpenAI) -> str | None:
        with pytest.raises(openai.BadRequestError, match="engine-0: HTTP 400: no such regex"):
            await client.chat.completions.create(model="policy", messages=[USER])
        answer = await client.chat.completions.create(model="policy", messages=[USER])
        return answer.choices[0].message.content

    found = session()
    assert await Served(policy=RefusingPolicy(lambda _: f"5{END}")).play(found, agent) == "5"
    assert found.record.num_calls == 1
    assert "a call of an agent is refused: engine-0: HTTP 400: no such regex" in caplog.text


class HeldPolicy(ScriptedPolicy):
    """One that answers only when it may, and counts what was given up."""

    def __init__(self) -> None:
        super().__init__(lambda _: f"5{END}")
        self.may = asyncio.Event()
        self.begun = asyncio.Event()
        self.num_given_up = 0

    async def generate(self, requests: Any, *, stays_awake: bool) -> Any:
        answers = await super().generate(requests, stays_awake=stays_awake)
        self.begun.set()
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        return answers


def held() -> tuple[Served, HeldPolicy]:
    policy = HeldPolicy()
    return Served(policy=policy), policy


async def test_a_call_that_is_sent_again_takes_the_place_of_the_first_and_is_one_sample():
    served, policy = held()
    found = session()

    async def agent(key: str) -> Any:
        async with served.http(key) as client:
            body = {"model": "policy", "messages": [USER]}
            first = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await policy.begun.wait()
            policy.begun.clear()
            again = asyncio.create_task(
                client.post("/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})
            )
            await policy.begun.wait()
            policy.may.set()
            answer = await again
            # whose answer was lost on its way
            once_more = await client.post(
                "/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "2"}
            )
            return (await first).status_code, answer.json(), once_more.json()

    async with asyncio.timeout(HUNG_SECONDS):
        gone, answer, once_more = await served.gateway.play(found, agent)
    assert gone == 499
    assert answer["choices"] == once_more["choices"]
    assert policy.num_given_up == 1
    assert [request.seed for request in policy.requests] == [found.seed] * 2
    assert (found.record.num_calls, found.record.num_sampled) == (1, 2)


@pytest.mark.parametrize("at_once", [False, True])
async def test_of_two_calls_that_ask_the_same_each_is_a_draw_and_a_repeat_is_of_the_later_one(at_once: bool):
    said = iter(["4", "5", "6"])

    class BreakingOff(ScriptedPolicy):
        """The second call never ends, and the first one not before it has begun where both are made at
        once."""

        async def generate(self, requests: Any, *, stays_awake: bool) -> Any:
            answers = await super().generate(requests, stays_awake=stays_awake)
            if len(self.requests) == 1 and at_once:
                await second_has_begun.wait()
            elif len(self.requests) == 2:
                second_has_begun.set()
                await asyncio.Event().wait()
            return answers

    second_has_begun = asyncio.Event()
    served, found = Served(policy=BreakingOff(lambda _: next(said) + END)), session()
    asked = read_chat_request({"messages": [USER]}, terms=TERMS)

    async def agent(key: str) -> list[str]:
        first = asyncio.create_task(served.gateway.answer(key, asked, identity="a"))
        if not at_once:
            await first
        second = asyncio.create_task(served.gateway.answer(key, asked, identity="a"))
        await second_has_begun.wait()
        await first
        second.cancel()
        await asyncio.wait([second])
        again = await served.gateway.answer(key, asked, identity="a", is_sent_again=True)
        return [str(answer.message["content"]) for answer in (first.result(), again)]

    async with asyncio.timeout(HUNG_SECONDS):
        assert await served.gateway.play(found, agent) == ["4", "6"]
    assert found.record.num_calls == 2


async def test_a_client_that_leaves_at_the_moment_of_its_answer_gets_it_when_it_asks_again():
    """What was sampled is in the record then, and would be trained twice."""
    leave: list[Callable[[], object]] = []

    class Moment(Session):
        def take(self, turn: Turn, rollout: Rollout, *, seconds: float) -> Answer:
            asyncio.get_running_loop().call_soon(leave.pop())
            return super().take(turn, rollout, seconds=seconds)

    served, found = Served(), Moment(chat_model(), seed=7)
    asked = read_chat_request({"messages": [USER]}, terms=TERMS)

    async def agent(key: str) -> Answer:
        first = asyncio.create_task(served.gateway.answer(key, asked, identity="a"))
        leave.append(first.cancel)
        await asyncio.wait([first])
        assert first.cancelled()
        return await served.gateway.answer(key, asked, identity="a", is_sent_again=True)

    async with asyncio.timeout(HUNG_SECONDS):
        assert (await served.gateway.play(found, agent)).message["content"] == "5"
    assert found.record.num_calls == len(served.policy.requests) == 1


@pytest.mark.parametrize("num_calls", [1, 2])
async def test_what_an_agent_still_asks_at_its_end_is_given_up(num_calls: int):
    """Also where it asks the same twice at once."""
    served, policy = held()
    found = session()
    calls = []

    async def agent(key: str) -> None:
        async def call() -> int:
            async with served.http(key) as client:
                body = {"model": "policy", "messages": [USER]}
                return (await client.post("/v1/chat/completions", json=body)).status_code

        for _ in range(num_calls):
            calls.append(asyncio.create_task(call()))
            await policy.begun.wait()
            policy.begun.clear()

    async with asyncio.timeout(HUNG_SECONDS):
        await served.gateway.play(found, agent)
        assert await asyncio.gather(*calls) == [499] * num_calls
    assert policy.num_given_up == num_calls
    assert found.record.rollouts() == []


async def end_late(
    found: Session, playing: "asyncio.Task[Any]", policy: HeldPolicy, clock: SkippingClock
) -> None:
    """The time of a session ends while engines sample for it, which is not its agent's fault; then they
    answer, and the agent is cancelled."""
    async with asyncio.timeout(HUNG_SECONDS):
        await policy.begun.wait()
    clock.skip(HUNG_SECONDS)
    async with asyncio.timeout(HUNG_SECONDS):
        while not found.is_cut:
            await asyncio.wait({playing}, timeout=0.01)
        assert not playing.done()
        policy.may.set()
        assert await playing is None


async def test_an_agent_whose_time_is_over_ends_once_what_it_asked_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
):
    served, policy = held()
    found, clock = session(limits=Limits(seconds=HUNG_SECONDS)), SkippingClock(monkeypatch)

    async def agent(key: str) -> None:
        async with served.http(key) as client:
            await client.post("/v1/chat/completions", json={"model": "policy", "messages": [USER]})
            await asyncio.Event().wait()

    playing = asyncio.create_task(served.gateway.play(found, agent))
    await end_late(found, playing, policy, clock)
    assert (found.record.num_calls, policy.num_given_up) == (1, 0)


async def test_an_agent_whose_time_is_over_ends_once_its_judge_has_answered_and_asks_it_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
):
    served, policy = held()
    found, judge = session(limits=Limits(seconds=HUNG_SECONDS)), session(is_trained=False)
    clock = SkippingClock(monkeypatch)
    body = {"model": "policy", "messages": [USER]}
    status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def agent(key: str) -> None:
        async with served.gateway.beside(key, judge) as other, served.http(other) as client:
            await client.post("/v1/chat/completions", json=body)
            status.set_result((await client.post("/v1/chat/completions", json=body)).status_code)
            await asyncio.Event().wait()

    playing = asyncio.create_task(served.gateway.play(found, agent))
    await end_late(found, playing, policy, clock)
    assert (judge.record.num_calls, judge.is_cut, policy.num_given_up) == (1, True, 0)
    assert not status.done() or status.result() == 429


async def test_a_schema_is_looked_at_beside_the_event_loop():
    threads = set()

    def read(body: Any, *, terms: Terms) -> ChatRequest:
        threads.add((terms.is_trained, threading.current_thread() is threading.main_thread()))
        return read_chat_request(body, terms=terms)

    for is_trained in (True, False):
        terms = Terms(given={}, vocab_size=9, is_trained=is_trained)
        assert (await read_beside(read, {"messages": [USER]}, terms=terms)).messages == (USER,)
    assert threads == {(True, True), (False, False)}


async def test_a_session_that_is_not_trained_is_sampled_as_its_calls_say_and_ends_with_the_agent():
    served, found = Served(), session()
    judge = session(limits=Limits(turns=2), is_trained=False)
    keys = []

    async def agent(key: str) -> Any:
        async with (
            served.gateway.beside(key, judge) as other,
            served.client(key) as client,
            served.client(other) as untrained,
        ):
            keys.append(other)
            options: Any = {"model": "policy", "messages": [USER], "temperature": 0.5}
            await client.chat.completions.create(**options)
            with pytest.raises(openai.BadRequestError, match="logit_bias"):
                await client.chat.completions.create(**options, logit_bias={"5": 1})
            await untrained.chat.completions.create(**options, logit_bias={"5": 1}, seed=3, max_tokens=300)
            await untrained.chat.completions.create(model="policy", messages=[USER])
            with pytest.raises(openai.RateLimitError, match=r"limits\.turns of this session is reached"):
                await untrained.chat.completions.create(**options)
            with pytest.raises(openai.BadRequestError, match="n: one reply a call"):
                await untrained.chat.completions.create(**options, n=2)

    async with asyncio.timeout(HUNG_SECONDS):
        await served.gateway.play(found, agent)
    trained, own, plain = served.policy.requests
    assert (trained.own_parameters, found.overridden) == (None, {"temperature": 1})
    assert (own.own_parameters, own.seed) == ('{"logit_bias": {"5": 1}, "temperature": 0.5}', 3)
    assert own.max_tokens == 300 > trained.max_tokens
    assert (plain.own_parameters, plain.max_tokens) == ("{}", trained.max_tokens)
    # of the judge nothing is trained, and its limit is not the agent's
    assert (found.record.num_calls, judge.record.num_calls) == (1, 2)
    assert (found.is_cut, judge.is_cut) == (False, True)
    async with served.client(keys[0]) as client:
        with pytest.raises(openai.AuthenticationError, match="no open session has this key"):
            await client.chat.completions.create(model="policy", messages=[USER])
