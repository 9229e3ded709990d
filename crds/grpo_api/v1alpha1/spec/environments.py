"""`environments`: what makes completions by calls of an API for chats, with the rules about it and the rest
of the spec."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, KeyedBy, TextRule, rule
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.fields import CodeRef, FunctionPath
from grpo_api.v1alpha1.spec.rewards import MOST_WORKERS, BuiltinReward, Name, RewardSpec
from grpo_api.v1alpha1.spec.sampling import History, SamplingSpec

MOST_ENVIRONMENTS = 16
"""A job has no more."""
BESIDE_TRIES_SECONDS = 120
"""How long an episode that is given up may take beside `limits.seconds` of each of its three tries."""


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
    is still answered, and the agent is cancelled. Three tries, and 120 seconds beside them, must be shorter
    than stallTimeoutSeconds. Defaults to 300."""


Command = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(min_length=1, max_length=64)
]
"""A program and its arguments."""


@rule(
    cel="has(self.url) != has(self.command)",
    sentence="an MCP server needs exactly one of url and command: set one and remove the other",
)
def server_has_one_place(url: str | None, command: tuple[str, ...] | None) -> bool:
    """A server runs elsewhere, or is started."""
    return (url is None) != (command is None)


@rule(
    cel="has(self.command) || !has(self.perSession) || !self.perSession",
    sentence="perSession is for an MCP server that is started by command: remove perSession, or set command "
    "in place of url",
    field=".perSession",
)
def only_what_is_started_is_per_session(command: tuple[str, ...] | None, per_session: bool) -> bool:
    """A server that runs elsewhere is one for all episodes."""
    return command is not None or not per_session


class McpServerSpec(ApiModel):
    """An MCP server. Set one of `url` and `command`."""

    rules = (server_has_one_place, only_what_is_started_is_per_session)

    name: Name
    """Name of the server in messages."""
    url: (
        Annotated[
            str,
            Field(max_length=1024),
            Follows(
                TextRule(
                    r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
                    "must be an address without user, password, query or fragment: write http://HOST/PATH or "
                    "https://HOST/PATH",
                )
            ),
        ]
        | None
    ) = None
    """Address of streamable HTTP, such as `http://search.tools.svc/mcp`."""
    command: Command | None = None
    """A program that speaks over standard input and output, with its arguments. Each worker starts one ahead,
    for all of its episodes."""
    per_session: Annotated[bool, NOT_STORED] = False
    """Start one for each episode, and end it with that. Defaults to false."""


@rule(
    cel="has(self.function) || has(self.configMap) || has(self.mcpServers)",
    sentence="tools needs a function, a configMap or mcpServers: set one of them",
)
def tools_come_from_somewhere(
    function: str | None, config_map: CodeRef | None, mcp_servers: tuple[McpServerSpec, ...] | None
) -> bool:
    """There is something that has tools."""
    return (function, config_map, mcp_servers) != (None, None, None)


@rule(
    cel="!has(self.function) || !has(self.configMap)",
    sentence="tools has a function and a configMap, which are two places for the same: remove one",
)
def tools_have_one_place(function: str | None, config_map: CodeRef | None) -> bool:
    """The code of tools is in the image or in a ConfigMap."""
    return function is None or config_map is None


class ToolsSpec(ApiModel):
    """What the policy may call. Set at most one of `function` and `configMap`; beside `mcpServers` both may
    be left out."""

    rules = (tools_come_from_somewhere, tools_have_one_place)

    function: FunctionPath | None = None
    """`module:name` in the image of a class whose public methods are tools, as for TRL's
    `environment_factory`, of a function, or of a list of functions."""
    config_map: CodeRef | None = None
    """The same in a ConfigMap."""
    mcp_servers: (
        Annotated[tuple[McpServerSpec, ...], Field(min_length=1, max_length=16), KeyedBy("name")] | None
    ) = None
    """MCP servers, whose tools are added."""


@rule(
    cel="[has(self.function), has(self.configMap), has(self.tools), has(self.command)]"
    ".filter(is, is).size() == 1",
    sentence="an environment needs exactly one of function, configMap, tools and command: set one and remove "
    "the others",
)
def environment_has_one_kind(
    function: str | None,
    config_map: CodeRef | None,
    tools: ToolsSpec | None,
    command: tuple[str, ...] | None,
) -> bool:
    """A completion is made in one way."""
    return [function, config_map, tools, command].count(None) == 3


class EnvironmentSpec(ApiModel):
    """What makes completions by calls of OpenAI's API for chats. What the policy answers to them is trained.
    It may bring its tasks and its rewards, in place of `dataset` and `rewards`. Set one of `function`,
    `configMap`, `tools` and `command`."""

    rules = (environment_has_one_kind,)

    name: Name
    """Name of the environment in metrics and messages."""
    function: FunctionPath | None = None
    """`module:function` in the image of a coroutine `async def agent(client, task)`, where `client` is an
    AsyncOpenAI."""
    config_map: CodeRef | None = None
    """Such a coroutine in a ConfigMap."""
    tools: ToolsSpec | None = None
    """Tools for the policy. Each prompt is a chat that goes on until a reply calls none of them."""
    command: Command | None = None
    """A program with its arguments, which finds the API by OPENAI_BASE_URL and OPENAI_API_KEY, and its task,
    as JSON, on its standard input."""
    weight: Annotated[float, Field(gt=0, le=1000), NOT_STORED] = 1.0
    """Which share of the prompts it gets, beside the weights of the other environments. Defaults to 1."""
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS), NOT_STORED] = 1
    """Processes of the first trainer pod that run its episodes, each with a part of them in one event loop.
    Defaults to 1; more are for agents that compute."""
    limits: EpisodeLimitsSpec = EpisodeLimitsSpec()
    """What one episode may use."""

    @property
    def code(self) -> CodeRef | None:
        """The code in a ConfigMap, which pods mount."""
        return self.config_map if self.tools is None else self.tools.config_map


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
    f"e.limits.seconds : 300) + {BESIDE_TRIES_SECONDS} < self.stallTimeoutSeconds)",
    sentence="three times limits.seconds of environments (300 where it is not set), and "
    f"{BESIDE_TRIES_SECONDS}, must be below "
    "stallTimeoutSeconds ({stallTimeoutSeconds}), because an episode that hangs is tried three times and "
    "given up before the job counts as stalled: lower it, or raise stallTimeoutSeconds",
    field=".environments",
)
def episodes_are_no_stall(
    environments: tuple[EnvironmentSpec, ...] | None, stall_timeout_seconds: int
) -> bool:
    """Nothing but a finished episode is progress. Beside the seconds of three tries there are pauses of 5 and
    30 s, and for each try up to 10 s in which its process is asked whether it hangs, 10 s until it has ended
    its part, and, where other episodes use it, 10 s in which it is asked once more. What hangs takes less of
    that, and its process is started again."""
    return all(
        3 * environment.limits.seconds + BESIDE_TRIES_SECONDS < stall_timeout_seconds
        for environment in environments or ()
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


@rule(
    cel="has(self.sampling.toolCallParser) || !has(self.environments) || "
    "!self.environments.exists(environment, has(environment.tools))",
    sentence="tools of environments need sampling.toolCallParser, without which no call of a tool is seen in "
    "a reply: name vLLM's parser for the model, such as hermes",
    field=".sampling.toolCallParser",
)
def tools_have_a_parser(environments: tuple[EnvironmentSpec, ...] | None, sampling: SamplingSpec) -> bool:
    """A call of a tool is text until a parser has read it."""
    has_tools = any(environment.tools is not None for environment in environments or ())
    return sampling.tool_call_parser is not None or not has_tools
