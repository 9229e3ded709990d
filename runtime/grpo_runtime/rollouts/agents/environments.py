"""The environments of a run: their agents, and the gateway that all of them call."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import EnvironmentSpec, History, SamplingSpec
from grpo_runtime.data.prompt import Prompt
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
from grpo_runtime.rollouts.agents.kinds import kind_of
from grpo_runtime.rollouts.agents.source import Agent, AgentOptions
from grpo_runtime.rollouts.collect import Source, Take
from grpo_runtime.rollouts.function.tries import Part
from grpo_runtime.rollouts.function.turn_sampler import TurnSampler
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines
from grpo_runtime.rollouts.sampling import sampling_parameters


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An agent, in one or several processes."""

    name: str
    weight: float
    workers: Sequence[Agent]


@dataclass(frozen=True, kw_only=True)
class Environments:
    """The environments of a run. Their agents call what `over` serves."""

    environments: Sequence[Environment]
    column: str | None
    """The column of the data that names the environment of a row; without one, weights decide."""
    model: ChatModel
    sampling: SamplingSpec

    @asynccontextmanager
    async def over(self, engines: Engines) -> AsyncIterator[Source]:
        """The source that makes samples with the agents. What they ask is sampled by `engines`, which rest
        behind the last sample, unless they are to stay awake."""
        gateway = Gateway(self.model, TurnSampler(engines))
        parameters = sampling_parameters(self.sampling, seed=0)
        given = {name: parameters[name] for name in JOB_DECIDES if name != "seed"}
        async with served(application(gateway, given=given)) as url:
            sources = [
                [
                    worker.over(engines, gateway, url=f"{url}/v1", part=Part(place, len(found.workers)))
                    for place, worker in enumerate(found.workers)
                ]
                for found in self.environments
            ]
            yield Shared(sources, engines, place_of=self._place_of())

    def _place_of(self) -> "PlaceOf":
        return _chosen(
            self.column,
            names=[found.name for found in self.environments],
            weights=[found.weight for found in self.environments],
        )


def environment_of(run_config: RunConfig) -> Callable[[Group], str] | None:
    """Gives the name of the environment that makes a group; None in a run without any."""
    specs = run_config.environments
    if specs is None:
        return None
    names = [spec.name for spec in specs]
    place_of = _chosen(run_config.dataset.environment, names=names, weights=[spec.weight for spec in specs])
    return lambda group: names[place_of(group)]


def environments_in(prompts: Sequence[Prompt], run_config: RunConfig) -> frozenset[str]:
    """The names of the environments that make groups of these prompts; none in a run without any."""
    column = run_config.dataset.environment
    if column is not None:
        return frozenset(prompt.columns[column] for prompt in prompts)
    return frozenset(spec.name for spec in run_config.environments or ())


def _chosen(column: str | None, *, names: Sequence[str], weights: Sequence[float]) -> "PlaceOf":
    return by_weight(weights) if column is None else by_column(column, names=names)


PlaceOf = Callable[[Group], int]
"""The environment that makes a group: the same in every attempt."""


def by_weight(weights: Sequence[float]) -> PlaceOf:
    """By the seed of a group, each environment gets its share."""
    shares = [up_to / sum(weights) for up_to in accumulate(weights)]

    def place_of(group: Group) -> int:
        drawn = group.requests[0].seed / (1 << GROUP_SEED_BITS)
        return next((place for place, share in enumerate(shares) if drawn < share), len(shares) - 1)

    return place_of


def by_column(column: str, *, names: Sequence[str]) -> PlaceOf:
    """By what a row of the dataset says."""
    return lambda group: names.index(group.prompt.columns[column])


class Shared:
    """Samples of several environments, each of which makes whole groups, by sources that each make a part of
    its samples."""

    def __init__(self, sources: Sequence[Sequence[Source]], engines: Engines, *, place_of: PlaceOf) -> None:
        self._sources = sources
        self._engines = engines
        self._place_of = place_of

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss."""
        shared: list[list[Group]] = [[] for _ in self._sources]
        for group in groups:
            shared[self._place_of(group)].append(group)
        await run_together(
            source.sample(share, take=take, stays_awake=True)
            for sources, share in zip(self._sources, shared, strict=True)
            for source in sources
            if share
        )
        if not stays_awake:
            await self._engines.rest()


@asynccontextmanager
async def started_environments(
    environments: Sequence[EnvironmentSpec],
    run_config: RunConfig,
    *,
    decoder: CompletionDecoder,
    vocab_size: int,
    volumes_dir: Path,
    columns: Collection[str],
) -> AsyncIterator[Environments]:
    """The agents with their processes, for data with these columns beside the prompt. Raises UserError when
    one is not found or needs other arguments, and when a parser is not found."""
    model = await chat_model(run_config, decoder=decoder, vocab_size=vocab_size)
    async with AsyncExitStack() as stack:
        started = []
        for spec in environments:
            options = agent_options(spec, run_config, volumes_dir=volumes_dir, columns=columns)
            workers = [await stack.enter_async_context(Agent(options)) for _ in range(spec.workers)]
            started.append(Environment(name=spec.name, weight=spec.weight, workers=workers))
        yield Environments(
            environments=started,
            column=run_config.dataset.environment,
            model=model,
            sampling=run_config.sampling,
        )


async def chat_model(run_config: RunConfig, *, decoder: CompletionDecoder, vocab_size: int) -> ChatModel:
    """How the chats of a run become tokens. Raises UserError when a parser is not found."""
    sampling = run_config.sampling
    return ChatModel(
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
        vocab_size=vocab_size,
        max_model_len=run_config.engine.max_model_len,
        max_tokens=sampling.max_tokens,
        extends=sampling.history is History.EXACT,
    )


def agent_options(
    spec: EnvironmentSpec, run_config: RunConfig, *, volumes_dir: Path, columns: Collection[str]
) -> AgentOptions:
    """How the agent of an environment is called, and what it may use."""
    kind, limits = kind_of(spec), spec.limits
    return AgentOptions(
        name=spec.name,
        kind=kind,
        code=kind.of_spec(spec, run_config, volumes_dir),
        limits=Limits(
            turns=limits.turns,
            tokens=limits.tokens or run_config.engine.max_model_len,
            prompt_tokens=limits.prompt_tokens,
            sequences=limits.sequences,
            seconds=limits.seconds,
        ),
        columns=tuple(columns),
    )


def _replies(sampling: SamplingSpec, tokenizer: PreTrainedTokenizerBase) -> ReplyReader:
    if sampling.tool_call_parser is None and sampling.reasoning_parser is None:
        return PlainReplies()
    return engine_kind().reply_reader(
        tokenizer,
        tool_call_parser=sampling.tool_call_parser,
        reasoning_parser=sampling.reasoning_parser,
        template_arguments=sampling.chat_template_arguments or {},
    )
