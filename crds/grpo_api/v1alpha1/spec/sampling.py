"""`sampling`: how prompts become chats and completions are sampled, and `rolloutFunction`."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.fields import CodeRef, FunctionPath
from grpo_api.v1alpha1.spec.loss import LossType, RatioLevel


@rule(
    cel="has(self.function) != has(self.configMap)",
    sentence="sampling.rolloutFunction needs exactly one of function and configMap: set one and remove the "
    "other",
)
def has_one_place(function: str | None, config_map: CodeRef | None) -> bool:
    """The function is in the image or in a ConfigMap."""
    return (function is None) != (config_map is None)


class RolloutFunctionSpec(ApiModel):
    """A coroutine of yours that makes each completion: it samples turns from the job's engines, and adds what
    tools say between them. Set one of `function` and `configMap`."""

    rules = (has_one_place,)

    function: FunctionPath | None = None
    """`module:function` in the image."""
    config_map: CodeRef | None = None
    """A function whose code is in a ConfigMap."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600), NOT_STORED] = 60
    """How long your code may take between two turns of a completion. Defaults to 60. When it takes longer,
    raises or dies, the completion is made again; after the third time it is given up."""
    max_turns: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most turns of a completion. One that asks for another turn is cut, as at sampling.maxTokens. Without it
    only sampling.maxTokens is a limit."""


LOWEST_TEMPERATURE = 0.01
"""Below it vLLM samples at another temperature than the one that it is asked for, or greedily."""

TemplateArgument = Annotated[Any, WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True})]
StopString = Annotated[str, Field(min_length=1, max_length=256)]


class History(StrEnum):
    """What an agent's next call is sampled behind."""

    EXACT = "Exact"
    TEMPLATE = "Template"


ParserName = Annotated[
    str,
    Field(max_length=63),
    Follows(
        TextRule(r"^[A-Za-z0-9][-A-Za-z0-9_.]*$", "must be a name: write one that vLLM has for a parser")
    ),
]


class SamplingSpec(ApiModel):
    """How completions are sampled. What is left out is neutral, also where the model's own
    generation_config.json says otherwise."""

    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Softmax temperature, at least 0.01."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 256
    """Longest completion, in tokens. With rolloutFunction this counts all turns of the completion and what is
    between them."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample only from the likeliest tokens that together have this probability. The engines' logprobs are
    then meant to differ from the trainer's, so condition MismatchHigh is not reported."""
    top_k: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Sample only from this many of the likeliest tokens. Condition MismatchHigh is not reported, as with
    topP."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample only tokens with at least this share of the likeliest token's probability. Condition
    MismatchHigh is not reported, as with topP."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Above 1, tokens that already are in the prompt or in the completion become less likely. The trainer
    does not compute this, so it needs algorithm.importanceCorrection.mode none."""
    stop: Annotated[tuple[StopString, ...], Field(min_length=1, max_length=16)] | None = None
    """Texts that end a completion, which then counts as terminated and not as cut. The completion is trained
    up to the token that completes the text, including it."""
    regex: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Regular expression that every completion must match; vLLM enforces it token by token. The trainer does
    not compute this, so it needs algorithm.importanceCorrection.mode none."""
    apply_chat_template: bool | None = None
    """Turn a text prompt into a chat with one message of the user. A prompt that is a list of messages is a
    chat in any case. Defaults to false."""
    system_prompt: Annotated[str, Field(min_length=1, max_length=32_768)] | None = None
    """System message that is put first in every chat that does not begin with one."""
    chat_template: Annotated[str, Field(min_length=1, max_length=131_072)] | None = None
    """Jinja template that makes the model's input of a chat, in place of the tokenizer's own."""
    chat_template_arguments: Annotated[dict[str, TemplateArgument], Field(max_length=32)] | None = None
    """Variables of the chat template, such as `enable_thinking: false`."""
    rollout_function: RolloutFunctionSpec | None = None
    """Your code that makes completions of several turns, with tools between them. Without it a completion is
    one turn."""

    history: Annotated[History, NOT_STORED] = History.EXACT
    """What the next call of an agent is sampled behind, when its chat goes on. `Exact` (the default) keeps
    the tokens that were sampled, older thoughts among them, so that a chat is one sequence. `Template`
    renders the chat anew, as a plain server of chats does; what is trained is then often a sequence for each
    call. Only with environments."""
    tool_call_parser: ParserName | None = None
    """vLLM's parser of the calls of tools in a reply (`--tool-call-parser`), such as `hermes`. Without it
    calls stay text. Only with environments."""
    reasoning_parser: ParserName | None = None
    """vLLM's parser of the thoughts in a reply (`--reasoning-parser`), such as `qwen3`. Without it thoughts
    stay text. Only with environments."""

    @property
    def truncations(self) -> tuple[str, ...]:
        """The fields that leave unlikely tokens out and so make all others more probable."""
        are_set = {
            "topP": self.top_p not in (None, 1.0),
            "topK": self.top_k is not None,
            "minP": bool(self.min_p),
        }
        return tuple(name for name, is_set in are_set.items() if is_set)

    @property
    def transforms(self) -> tuple[str, ...]:
        """The fields that make the distribution another one than the softmax at `temperature`."""
        are_set = {
            "repetitionPenalty": self.repetition_penalty not in (None, 1.0),
            "regex": self.regex is not None,
        }
        return (*self.truncations, *(name for name, is_set in are_set.items() if is_set))

    @property
    def chat_fields(self) -> tuple[str, ...]:
        """The fields that are set and mean nothing for a prompt that is no chat."""
        are_set = {
            "systemPrompt": self.system_prompt is not None,
            "chatTemplate": self.chat_template is not None,
            "chatTemplateArguments": self.chat_template_arguments is not None,
        }
        return tuple(name for name, is_set in are_set.items() if is_set)


@rule(
    cel=f"self.sampling.temperature >= {LOWEST_TEMPERATURE}",
    sentence=f"sampling.temperature must be at least {LOWEST_TEMPERATURE}, below which vLLM samples at "
    "another temperature or greedily: raise it",
    field=".sampling.temperature",
)
def temperature_is_sampled(sampling: SamplingSpec) -> bool:
    """Engines sample at the temperature that the trainer computes with."""
    return sampling.temperature >= LOWEST_TEMPERATURE


@rule(
    cel="!has(self.sampling.repetitionPenalty) || self.sampling.repetitionPenalty == 1.0 || "
    "self.algorithm.importanceCorrection.mode == 'none'",
    sentence="sampling.repetitionPenalty changes the engines' probabilities in a way that the trainer does "
    "not know, and importance correction would weigh every token by the difference: remove "
    "sampling.repetitionPenalty, or set algorithm.importanceCorrection.mode to none",
    field=".sampling.repetitionPenalty",
)
def penalty_is_not_corrected(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """A ratio to penalised probabilities says nothing about the policy."""
    return sampling.repetition_penalty in (None, 1.0) or not algorithm.importance_correction.is_on


@rule(
    cel="!has(self.sampling.regex) || self.algorithm.importanceCorrection.mode == 'none'",
    sentence="sampling.regex changes the engines' probabilities in a way that the trainer does not know, and "
    "importance correction would weigh every token by the difference: remove sampling.regex, or set "
    "algorithm.importanceCorrection.mode to none",
    field=".sampling.regex",
)
def grammar_is_not_corrected(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """A ratio to the probabilities of the tokens that a grammar leaves says nothing about the policy."""
    return sampling.regex is None or not algorithm.importance_correction.is_on


_NO_TRUNCATION = (
    "(!has(self.sampling.topP) || self.sampling.topP == 1.0) && !has(self.sampling.topK) && "
    "(!has(self.sampling.minP) || self.sampling.minP == 0.0)"
)


@rule(
    cel="self.algorithm.importanceCorrection.mode == 'none' || "
    "!has(self.algorithm.importanceCorrection.level) || "
    f"self.algorithm.importanceCorrection.level == 'token' || ({_NO_TRUNCATION})",
    sentence="sampling.topP, topK and minP make every token that is left more probable for the engine than "
    "for the trainer, and algorithm.importanceCorrection.level sequence would multiply that over a "
    "completion, so that long ones teach nothing: set level to token or mode to none, or remove topP, topK "
    "and minP",
    field=".algorithm.importanceCorrection.level",
)
def truncation_is_corrected_by_tokens(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """The ratio of a token is at least the probability that is left; a product of them has no such bound."""
    correction = algorithm.importance_correction
    return not correction.is_on or correction.level is not RatioLevel.SEQUENCE or not sampling.truncations


@rule(
    cel="self.algorithm.lossType != 'vespo' || self.algorithm.importanceCorrection.mode == 'none' || "
    f"({_NO_TRUNCATION})",
    sentence="sampling.topP, topK and minP make every token that is left more probable for the engine than "
    "for the trainer, and algorithm.lossType vespo would multiply that over a completion, so that long ones "
    "teach nothing: set algorithm.importanceCorrection.mode to none, or remove topP, topK and minP",
    field=".algorithm.lossType",
)
def truncation_is_not_corrected_with_vespo(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """Its weight of a completion has the product of the corrections in it."""
    is_corrected = algorithm.importance_correction.is_on
    return not is_corrected or algorithm.loss_type is not LossType.VESPO or not sampling.truncations


_NO_TRANSFORM = (
    f"{_NO_TRUNCATION} && "
    "(!has(self.sampling.repetitionPenalty) || self.sampling.repetitionPenalty == 1.0) && "
    "!has(self.sampling.regex)"
)


@rule(
    cel=f"!has(self.algorithm.offPolicyThreshold) || ({_NO_TRANSFORM})",
    sentence="algorithm.offPolicyThreshold compares the engine's probabilities with the trainer's, "
    "which sampling.topP, topK, minP, repetitionPenalty and regex make different even where "
    "the policy is the same, so that bad completions would be left out: remove "
    "offPolicyThreshold, or remove these",
    field=".algorithm.offPolicyThreshold",
)
def off_policy_threshold_compares_policies(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """Tokens far from the engine's distribution are far from the policy that sampled them."""
    return algorithm.off_policy_threshold is None or not sampling.transforms


@rule(
    cel=f"(!has(self.algorithm.geometricMask) && !has(self.algorithm.trustRegionMask)) || ({_NO_TRANSFORM})",
    sentence="algorithm.geometricMask and trustRegionMask compare the engine's probabilities with the "
    "trainer's, which sampling.topP, topK, minP, repetitionPenalty and regex make different even where the "
    "policy is the same, so that good tokens would be left out: remove the mask, or remove these",
    field=".algorithm",
)
def masks_compare_policies(sampling: SamplingSpec, algorithm: AlgorithmSpec) -> bool:
    """A token that the engine was made to prefer has moved by no update."""
    has_mask = algorithm.geometric_mask is not None or algorithm.trust_region_mask is not None
    return not has_mask or not sampling.transforms
