"""Agents whose calls a real engine hands over when it gets new weights. Transformers judges every token."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from engine_numbers import load_of
from policy_builder import changed_policy, logprobs, probe_of, weights_of

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import PauseMode, SamplingSpec
from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, open_session
from grpo_runtime.engines.fleet.fleet import Fleet
from grpo_runtime.engines.fleet.settings import FleetSettings, Pause, parse_hosts
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.replies import PlainReplies
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.serving import served
from grpo_runtime.gateway.session import ChatModel, Limits, Session
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.interface import Rollout, Segment
from grpo_runtime.settings import Tokens
from grpo_runtime.weight_sync.registry import GLOO

pytestmark = pytest.mark.engine

NUM_AGENTS, MAX_TOKENS, MAX_MODEL_LEN = 8, 80, 256
STOP = "aa"
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}<|eos|>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
HUNG_SECONDS = 120.0


def chat_model(engine: Any) -> ChatModel:
    tokenizer = load_tokenizer(engine.model_dir)
    ends = frozenset({tokenizer.eos_token_id})
    return ChatModel(
        name="policy",
        template=ChatTemplate(tokenizer=tokenizer, template=TEMPLATE, end_ids=ends),
        decoder=CompletionDecoder.of(tokenizer),
        replies=PlainReplies(),
        vocab_size=len(tokenizer),
        max_model_len=MAX_MODEL_LEN,
        max_tokens=MAX_TOKENS,
    )


async def test_calls_that_new_weights_abort_are_answered_once_and_each_token_is_of_its_weights(
    engine: Any, attempt: int
) -> None:
    """Agents ask for chats of two turns until new weights have come, every other one with a text that ends a
    reply. The engine is paused until then, so that it does not finish its calls first."""
    policies = {
        PolicyVersion(attempt, step): changed_policy(engine.model_dir, seed=80 + step) for step in range(2)
    }
    tokens = Tokens(data=engine.data_token, admin=engine.admin_token)
    settings = FleetSettings(
        hosts=parse_hosts(f"127.0.0.1:{engine.port}"),
        desired=1,
        attempt=attempt,
        tokens=tokens,
        sampling=SamplingSpec(max_tokens=MAX_TOKENS),
        sync_timeout_seconds=20.0,
        heartbeat_seconds=0.2,
        is_asynchronous=True,
        pause=Pause(PauseMode.ABORT),
    )
    # the engine has no room to receive while it samples
    fleet = Fleet(settings, backend=replace(GLOO, receives_while_serving=False))
    model = chat_model(engine)
    gateway = Gateway(model, TurnSampler(fleet))
    has_new_weights = asyncio.Event()
    sessions = [Session(model, 100 + place, limits=Limits()) for place in range(NUM_AGENTS)]

    async def sync(version: PolicyVersion) -> None:
        policy = policies[version]
        await fleet.sync(weights_of(policy), version=version, probe=probe_of(policy))

    async def play(place: int, url: str) -> list[Any]:
        """The choices that an agent got."""

        async def agent(key: str) -> list[Any]:
            choices = []
            async with openai.AsyncOpenAI(api_key=key, base_url=f"{url}/v1") as client:
                while not has_new_weights.is_set():
                    messages: list[Any] = [{"role": "user", "content": f"Say {len(choices)}"}]
                    for _ in range(2):
                        answer = await client.chat.completions.create(
                            model="policy",
                            messages=messages,
                            logprobs=True,
                            stop=[STOP] if place % 2 else None,
                            extra_body={"return_token_ids": True},
                        )
                        choices += answer.choices
                        messages += [choices[-1].message, {"role": "user", "content": "More"}]
            return choices

        found: list[Any] | None = await gateway.play(sessions[place], agent)
        assert found is not None
        return found

    old, new = policies
    try:
        async with (
            asyncio.timeout(HUNG_SECONDS),
            served(application(gateway, given={})) as url,
            open_session() as http,
        ):
            await sync(old)
            playing = asyncio.gather(*(play(place, url) for place in range(NUM_AGENTS)))
            address = Address("127.0.0.1", engine.port)
            await pause_while_sampling(EngineClient(http, address, tokens=tokens, attempt=attempt))
            await sync(new)
            has_new_weights.set()
            found = await playing
    finally:
        await fleet.close()

    num_continued = 0
    for place, (session, choices) in enumerate(zip(sessions, found, strict=True)):
        sequences = session.record.rollouts()
        for sequence in sequences:
            require_tokens_of_their_weights(sequence, policies)
        for turn, choice in zip(session.turns, choices, strict=True):
            sequence, tokens = sequences[turn.sequence], slice(turn.start, turn.end)
            assert choice.model_extra["token_ids"] == list(sequence.completion_ids[tokens])
            answered = [token.logprob for token in choice.logprobs.content]
            assert answered == list(sequence.rollout_logprobs[tokens])
            assert len(answered) <= MAX_TOKENS
            assert STOP not in choice.message.content or not place % 2
            segments = [each for each in sequence.segments if turn.start <= each.start < turn.end]
            if segments:
                num_continued += 1
                require_seam_is_where_weights_change(segments, sequence, begin=turn.start, end=turn.end)
    assert num_continued == fleet.num_handed_over > 0


async def pause_while_sampling(client: EngineClient) -> None:
    """Pause an engine at a moment at which it has begun calls and not ended them."""
    while True:
        await client.pause(mode="keep", clears_cache=False, timeout_seconds=HUNG_SECONDS)
        if (await load_of(client, timeout_seconds=HUNG_SECONDS)).num_running:
            return
        await client.resume(timeout_seconds=HUNG_SECONDS)


def require_tokens_of_their_weights(sequence: Rollout, policies: Any) -> None:
    """What was sampled has the logprobs of the weights that the record says, in its context."""
    num_prompt = len(sequence.prompt_ids)
    ids = sequence.prompt_ids + sequence.completion_ids
    computed = {version: logprobs(policy, ids)[num_prompt - 1 :] for version, policy in policies.items()}
    places = [place for span in sequence.versions for place in range(span.start, span.end)]
    mask = sequence.loss_mask or (True,) * len(sequence.completion_ids)
    assert places == [place for place, is_sampled in enumerate(mask) if is_sampled]
    for span in sequence.versions:
        tokens = slice(span.start, span.end)
        assert sequence.rollout_logprobs[tokens] == pytest.approx(computed[span.version][tokens], abs=1e-4)


def require_seam_is_where_weights_change(
    segments: Sequence[Segment], sequence: Rollout, *, begin: int, end: int
) -> None:
    """Of a turn that was handed over once, for new weights."""
    spans = [span for span in sequence.versions if begin <= span.start < end]
    assert [(each.start, each.end) for each in segments] == [(span.start, span.end) for span in spans]
    assert len(segments) == 2 and (segments[0].start, segments[1].end) == (begin, end)
    assert {each.engine for each in segments} == {"engine-0"}
