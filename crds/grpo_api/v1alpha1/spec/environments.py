"""`environments`: the agents that make completions, with the rules about them and the rest of the spec."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.fields import CodeRef, FunctionPath
from grpo_api.v1alpha1.spec.rewards import MOST_WORKERS, BuiltinReward, Name, RewardSpec
from grpo_api.v1alpha1.spec.sampling import History, SamplingSpec


class EpisodeLimitsSpec(ApiModel):
    """What one episode may use. A call beyond a limit is refused with its name (HTTP 429), and the episode
    then counts as cut, as a completion does at sampling.maxTokens."""

    turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Calls."""
    tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Sampled tokens of all calls. The last call ends with the last of them. Defaults to
    engine.maxModelLen."""
    prompt_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Prompt of one call. A longer one is answered at once with no text, as one that leaves no room in
    engine.maxModelLen is, which is the default."""
    sequences: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Sequences that are trained. A call that does not continue the chat of an earlier one begins one."""
    seconds: Annotated[int, Field(ge=1, le=604_800), NOT_STORED] = 300
    """Time from the beginning of the episode to its end, that of engines included. What is being sampled then
    is still answered, and the agent is cancelled. Three tries, and 65 seconds between them, must be shorter
    than stallTimeoutSeconds. Defaults to 300."""


@rule(
    cel="has(self.function) != has(self.configMap)",
    sentence="an environment needs exactly one of function and configMap: set one and remove the other",
)
def environment_has_one_place(function: str | None, config_map: CodeRef | None) -> bool:
    """The agent is in the image or in a ConfigMap."""
    return (function is None) != (config_map is None)


class EnvironmentSpec(ApiModel):
    """An agent that makes completions: a coroutine of yours `async def agent(client, task)`, where `client`
    is an AsyncOpenAI. What the policy answers to its calls is trained. It may bring its tasks and its
    rewards, in place of `dataset` and `rewards`. Set one of `function` and `configMap`."""

    rules = (environment_has_one_place,)

    name: Name
    """Name of the environment in metrics and messages."""
    function: FunctionPath | None = None
    """`module:function` in the image."""
    config_map: CodeRef | None = None
    """A coroutine whose code is in a ConfigMap."""
    weight: Annotated[float, Field(gt=0, le=1000), NOT_STORED] = 1.0
    """Which share of the prompts it gets, beside the weights of the other environments. Defaults to 1."""
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS), NOT_STORED] = 1
    """Processes of the first trainer pod that run its agent, each with a part of the episodes in one event
    loop. Defaults to 1; more are for agents that compute."""
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
    cel="has(self.environments) || (has(self.dataset) && has(self.rewards))",
    sentence="dataset and rewards are missing, without which a job needs environments that bring tasks and "
    "rewards: add both, or environments",
)
def tasks_and_rewards_come_from_somewhere(
    environments: tuple[EnvironmentSpec, ...] | None,
    dataset: DatasetSpec | None,
    rewards: tuple[RewardSpec, ...] | None,
) -> bool:
    """An agent may make its own tasks, and return rewards."""
    return environments is not None or (dataset is not None and rewards is not None)


@rule(
    cel="!has(self.dataset) || !has(self.dataset.environment) || (has(self.environments) && "
    "self.environments.all(e, !has(e.weight) || e.weight == 1.0))",
    sentence="dataset.environment is the column that names the environment of each row: add environments, "
    "and remove their weight, which has no effect then",
    field=".dataset.environment",
)
def rows_name_environments(
    environments: tuple[EnvironmentSpec, ...] | None, dataset: DatasetSpec | None
) -> bool:
    """Either rows or weights say which environment makes a completion."""
    if dataset is None or dataset.environment is None:
        return True
    return environments is not None and all(environment.weight == 1 for environment in environments)


@rule(
    cel="!has(self.environments) || self.environments.all(e, 3 * (has(e.limits) && has(e.limits.seconds) ? "
    "e.limits.seconds : 300) + 65 < self.stallTimeoutSeconds)",
    sentence="three times limits.seconds of environments (300 where it is not set), and 65, must be below "
    "stallTimeoutSeconds ({stallTimeoutSeconds}), because an agent that hangs is tried three times and "
    "should end the job with its own error: lower it, or raise stallTimeoutSeconds",
    field=".environments",
)
def episodes_are_no_stall(
    environments: tuple[EnvironmentSpec, ...] | None, stall_timeout_seconds: int
) -> bool:
    """Nothing but a finished episode is progress. Between three tries are pauses of 5 and 30 s, and each ends
    with up to 10 s in which its process is asked whether it hangs."""
    return all(
        3 * environment.limits.seconds + 65 < stall_timeout_seconds for environment in environments or ()
    )


@rule(
    cel="has(self.environments) || !has(self.rewards) || "
    "!self.rewards.exists(reward, has(reward.builtin) && reward.builtin == 'environment')",
    sentence="rewards have the builtin environment, which is what an agent returns: add environments or take "
    "another reward",
    field=".rewards",
)
def returned_reward_has_its_environment(
    environments: tuple[EnvironmentSpec, ...] | None, rewards: tuple[RewardSpec, ...] | None
) -> bool:
    """Only an agent returns rewards."""
    return environments is not None or all(
        reward.builtin is not BuiltinReward.ENVIRONMENT for reward in rewards or ()
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
