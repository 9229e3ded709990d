"""`environments`: the agents that make completions, with the rules about them and the rest of the spec."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.fields import CodeRef, FunctionPath
from grpo_api.v1alpha1.spec.rewards import BuiltinReward, Name, RewardSpec
from grpo_api.v1alpha1.spec.sampling import History, SamplingSpec


class EpisodeLimitsSpec(ApiModel):
    """What one episode may use. A call beyond a limit is refused with its name (HTTP 429), and the episode
    then counts as cut, as a completion does at sampling.maxTokens."""

    turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Calls."""
    tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Sampled tokens of all calls. The last call ends with the last of them."""
    prompt_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Prompt of one call. A longer one is answered at once with no text, as one that leaves no room in
    engine.maxModelLen is."""
    sequences: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Sequences that are trained. A call that does not continue the chat of an earlier one begins one."""
    seconds: Annotated[int, Field(ge=1, le=604_800), NOT_STORED] = 600
    """Time from the beginning of the episode to its end. Defaults to 600."""


@rule(
    cel="has(self.function) != has(self.configMap)",
    sentence="an environment needs exactly one of function and configMap: set one and remove the other",
)
def environment_has_one_place(function: str | None, config_map: CodeRef | None) -> bool:
    """The agent is in the image or in a ConfigMap."""
    return (function is None) != (config_map is None)


class EnvironmentSpec(ApiModel):
    """An agent that makes completions: a coroutine of yours `async def agent(client, task)`, where `client`
    is an AsyncOpenAI. What the policy answers to its calls is trained. Set one of `function` and
    `configMap`."""

    rules = (environment_has_one_place,)

    name: Name
    """Name of the environment in metrics and messages."""
    function: FunctionPath | None = None
    """`module:function` in the image."""
    config_map: CodeRef | None = None
    """A coroutine whose code is in a ConfigMap."""
    weight: Annotated[float, Field(gt=0, le=1000), NOT_STORED] = 1.0
    """Which share of the prompts it gets, beside the weights of the other environments. Defaults to 1."""
    limits: EpisodeLimitsSpec = EpisodeLimitsSpec()
    """What one episode may use."""


# About the whole spec


@rule(
    cel="!has(self.environments) || !has(self.sampling.rolloutFunction)",
    sentence="environments and sampling.rolloutFunction both make completions: remove one",
    field=".environments",
)
def completions_have_one_maker(
    environments: tuple[EnvironmentSpec, ...] | None, sampling: SamplingSpec
) -> bool:
    """A completion is made by one of them."""
    return environments is None or sampling.rollout_function is None


@rule(
    cel="has(self.environments) || "
    "!self.rewards.exists(reward, has(reward.builtin) && reward.builtin == 'environment')",
    sentence="rewards have the builtin environment, which is what an agent returns: add environments or take "
    "another reward",
    field=".rewards",
)
def returned_reward_has_its_environment(
    environments: tuple[EnvironmentSpec, ...] | None, rewards: tuple[RewardSpec, ...]
) -> bool:
    """Only an agent returns rewards."""
    return environments is not None or all(
        reward.builtin is not BuiltinReward.ENVIRONMENT for reward in rewards
    )


@rule(
    cel="has(self.environments) || !(has(self.sampling.toolCallParser) || has(self.sampling.reasoningParser) "
    "|| (has(self.sampling.history) && self.sampling.history != 'Exact'))",
    sentence="sampling.history, toolCallParser and reasoningParser are for the chats of environments: add "
    "environments, or remove them",
    field=".sampling",
)
def chats_have_environments(environments: tuple[EnvironmentSpec, ...] | None, sampling: SamplingSpec) -> bool:
    """Replies are read for agents only."""
    parsers = (sampling.tool_call_parser, sampling.reasoning_parser)
    return environments is not None or (parsers == (None, None) and sampling.history is History.EXACT)
