"""Plays the episodes of every kind in turn, and measures them. The gateway and the workers are the product's;
the engines know what to say without a model."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_bench.errors import BenchError
from grpo_learning.chat_policy import call_of, chat_tokenizer
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.serving import served
from grpo_runtime.gateway.session import ChatModel
from grpo_runtime.local.ports import free_ports
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rollouts.agents.environments import agent_options, chat_model
from grpo_runtime.rollouts.agents.source import Agent
from grpo_runtime.rollouts.collect import Source
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest, GivenUp, Rollout
from grpo_turns.figures import LONG_TURNS, SHORT_TURNS, Figures, Round, figures_of
from grpo_turns.kinds import COROUTINE, job_of, kinds, server_at

_BENCH = Path(__file__).parents[1]
_QUESTION = "6*7"


class InstantEngines:
    """Engines, which are a fake: a reply is a call of the calculator until the chat has enough of them, and
    takes no time."""

    is_concurrent = True

    def __init__(self, model: ChatModel) -> None:
        self.num_calls = 0
        """Of the calculator, in an episode."""
        tokenizer = model.decoder.tokenizer
        encode = tokenizer.encode
        end = tokenizer.eos_token_id
        self._call = (*encode(call_of(_QUESTION), add_special_tokens=False), end)
        self._answer = (*encode("42", add_special_tokens=False), end)
        self._tag = tokenizer.convert_tokens_to_ids("<tool_call>")

    async def generate(self, requests: Sequence[GenerateRequest], *, stays_awake: bool) -> list[Rollout]:
        """The reply to each."""
        return [self._rollout(request) for request in requests]

    async def rest(self) -> None:
        """Nothing is awake."""

    def _rollout(self, request: GenerateRequest) -> Rollout:
        is_last = request.prompt_ids.count(self._tag) >= self.num_calls
        token_ids = self._answer if is_last else self._call
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=token_ids,
            rollout_logprobs=(0.0,) * len(token_ids),
            versions=(),
            is_terminated=True,
            engine="",
        )


async def measure(*, num_rounds: int, num_episodes: int, at_once: int) -> Mapping[str, Figures]:
    """The figures of each kind. In each round all are played in turn: `num_episodes` short ones and as many
    long ones, one at a time, and `at_once` long ones at a time. Raises BenchError when an episode fails."""
    rounds: dict[str, list[Round]] = {}
    async with _opened() as (sources, engines):

        async def seconds(kind: str, *, turns: int, num: int) -> float:
            engines.num_calls = turns - 1
            begun = time.perf_counter()
            await _play(kind, sources[kind], num=num, turns=turns)
            return (time.perf_counter() - begun) / num

        async def one_by_one(kind: str, *, turns: int) -> float:
            return sum([await seconds(kind, turns=turns, num=1) for _ in range(num_episodes)]) / num_episodes

        for kind in sources:
            # the first episode meets code that was never run
            await seconds(kind, turns=SHORT_TURNS, num=1)
        for _ in range(num_rounds):
            for kind in sources:
                measured = Round(
                    short=await one_by_one(kind, turns=SHORT_TURNS),
                    long=await one_by_one(kind, turns=LONG_TURNS),
                    long_at_once=await seconds(kind, turns=LONG_TURNS, num=at_once),
                )
                rounds.setdefault(kind, []).append(measured)
    return {kind: figures_of(found, beside=rounds[COROUTINE]) for kind, found in rounds.items()}


async def _play(kind: str, source: Source, *, num: int, turns: int) -> None:
    group = Group(
        step=0,
        number=0,
        prompt=Prompt(index=0, content=[{"role": "user", "content": _QUESTION}], columns={}),
        requests=[GenerateRequest((), seed=seed << 8) for seed in range(num)],
    )

    def take(group: Group, index: int, found: Rollout | GivenUp) -> None:
        group.rollouts[index] = found

    await source.sample([group], take=take)
    for given_up in group.given_up:
        raise BenchError(f"{kind}: {given_up.why}")
    for episode in group.completions:
        assert episode.calls is not None
        if len(episode.calls.turns) != turns:
            raise BenchError(f"{kind}: an episode had {len(episode.calls.turns)} turns, not {turns}")


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Mapping[str, Source], InstantEngines]]:
    """The sources of all kinds, each with its worker, and their engines."""
    # for code of bench/ in workers, programs and servers
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_BENCH), os.environ.get("PYTHONPATH")]))
    [port] = free_ports(1)
    run_config = resolve(parse_job(job_of(port)))
    assert run_config.environments is not None
    tokenizer = chat_tokenizer([call_of(_QUESTION)] * 9, vocab_size=340)
    model = await chat_model(run_config, decoder=CompletionDecoder.of(tokenizer), vocab_size=len(tokenizer))
    engines = InstantEngines(model)
    gateway = Gateway(model, TurnSampler(engines))  # type: ignore[arg-type]
    async with _serving(port), served(application(gateway, given={})) as url, AsyncExitStack() as stack:
        sources: dict[str, Source] = {}
        for kind, spec in zip(kinds(port), run_config.environments, strict=True):
            options = agent_options(spec, run_config, volumes_dir=Path("/nowhere"), columns=())
            agent = await stack.enter_async_context(Agent(options))
            sources[kind] = agent.over(engines, gateway, url=f"{url}/v1")  # type: ignore[arg-type]
        yield sources, engines


@asynccontextmanager
async def _serving(port: int) -> AsyncIterator[None]:
    """The MCP server at an address; who asks it waits until it listens."""
    process = await asyncio.create_subprocess_exec(
        *server_at(port), stdout=asyncio.subprocess.DEVNULL, stderr=sys.stderr
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
