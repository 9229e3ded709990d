"""The environments of a run: their agents, and the gateway that all of them call."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import EnvironmentSpec, History, SamplingSpec
from grpo_runtime.data.seeds import GROUP_SEED_BITS
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.gateway.chat_request import JOB_DECIDES
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.gateway.gateway import Gateway
from grpo_runtime.gateway.replies import PlainReplies, ReplyReader
from grpo_runtime.gateway.server import application
from grpo_runtime.gateway.serving import served
from grpo_runtime.gateway.session import ChatModel, Limits
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.process.background import run_together
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.agents.source import Agent, AgentOptions
from grpo_runtime.rollouts.collect import Source, Take
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines
from grpo_runtime.rollouts.sampling import sampling_parameters


@dataclass(frozen=True, kw_only=True)
class Environments:
    """The agents of a run, each with its weight. They call what `over` serves."""

    agents: Sequence[tuple[float, Agent]]
    model: ChatModel
    sampling: SamplingSpec
    vocab_size: int

    @asynccontextmanager
    async def over(self, engines: Engines) -> AsyncIterator[Source]:
        """The source that makes samples with the agents. What they ask is sampled by `engines`, which rest
        behind the last sample, unless they are to stay awake."""
        gateway = Gateway(self.model, TurnSampler(engines))
        parameters = sampling_parameters(self.sampling, seed=0)
        given = {name: parameters[name] for name in JOB_DECIDES if name != "seed"}
        async with served(application(gateway, given=given, vocab_size=self.vocab_size)) as url:
            sources = [agent.over(engines, gateway, url=f"{url}/v1") for _, agent in self.agents]
            yield Shared(sources, engines, weights=[weight for weight, _ in self.agents])


class Shared:
    """Samples of several sources, each of which makes whole groups."""

    def __init__(self, sources: Sequence[Source], engines: Engines, *, weights: Sequence[float]) -> None:
        self._sources = sources
        self._engines = engines
        self._shares = [up_to / sum(weights) for up_to in accumulate(weights)]

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss, each group by one source."""
        shared: list[list[Group]] = [[] for _ in self._sources]
        for group in groups:
            shared[self.place_of(group)].append(group)
        await run_together(
            source.sample(share, take=take, stays_awake=True)
            for source, share in zip(self._sources, shared, strict=True)
            if share
        )
        if not stays_awake:
            await self._engines.rest()

    def place_of(self, group: Group) -> int:
        """The source of a group, by its seed: the same in every attempt."""
        drawn = group.requests[0].seed / (1 << GROUP_SEED_BITS)
        return next(
            (place for place, share in enumerate(self._shares) if drawn < share), len(self._shares) - 1
        )


@asynccontextmanager
async def started_environments(
    environments: Sequence[EnvironmentSpec],
    run_config: RunConfig,
    *,
    decoder: CompletionDecoder,
    vocab_size: int,
    volumes_dir: Path,
) -> AsyncIterator[Environments]:
    """The agents with their processes. Raises UserError when one is not found, or a parser."""
    sampling = run_config.sampling
    model = ChatModel(
        name=run_config.model.source,
        template=ChatTemplate(
            tokenizer=decoder.tokenizer,
            template=sampling.chat_template,
            arguments=sampling.chat_template_arguments or {},
            end_ids=decoder.end_ids,
        ),
        decoder=decoder,
        # vLLM takes seconds to import, in which an event loop would stand
        replies=await asyncio.to_thread(_replies, sampling, decoder.tokenizer),
        max_model_len=run_config.engine.max_model_len,
        max_tokens=sampling.max_tokens,
        extends=sampling.history is History.EXACT,
    )
    async with AsyncExitStack() as stack:
        agents = [
            (spec.weight, await stack.enter_async_context(Agent(_options(spec, volumes_dir=volumes_dir))))
            for spec in environments
        ]
        yield Environments(agents=agents, model=model, sampling=sampling, vocab_size=vocab_size)


def _options(spec: EnvironmentSpec, *, volumes_dir: Path) -> AgentOptions:
    code, limits = spec.config_map, spec.limits
    return AgentOptions(
        name=spec.name,
        function=spec.function,
        file=None if code is None else FunctionFile.of_spec(code, volumes_dir=volumes_dir),
        timeout_seconds=limits.seconds,
        limits=Limits(
            turns=limits.turns,
            tokens=limits.tokens,
            prompt_tokens=limits.prompt_tokens,
            sequences=limits.sequences,
        ),
    )


def _replies(sampling: SamplingSpec, tokenizer: PreTrainedTokenizerBase) -> ReplyReader:
    if sampling.tool_call_parser is None and sampling.reasoning_parser is None:
        return PlainReplies()
    return engine_kind().reply_reader(
        tokenizer, tool_call_parser=sampling.tool_call_parser, reasoning_parser=sampling.reasoning_parser
    )
