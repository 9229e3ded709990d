"""`rewards`: the reward functions, with the rules about them and the rest of the spec."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import RewardModelSource, Volume, VolumeKind
from grpo_api.v1alpha1.spec.dataset import DatasetSpec
from grpo_api.v1alpha1.spec.fields import ClaimName, CodeRef, FunctionPath, Revision
from grpo_api.v1alpha1.spec.model import Dtype
from grpo_api.v1alpha1.spec.sampling import SamplingSpec

MOST_WORKERS = 256
"""Processes of one reward function."""
MOST_THREADS = 512
"""Most threads of one process of a reward model."""
REQUESTS_AT_A_TIME = 16
"""Requests to one service at a time: it waits for networks and not for our CPUs."""
Name = Annotated[
    str,
    Field(max_length=63),
    Follows(
        TextRule(
            r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
            "must be a name for metrics: use lowercase letters, digits and -, begin with a letter and do not "
            "end with -",
        )
    ),
]


class BuiltinReward(StrEnum):
    """Reward functions that need no code."""

    EXACT_MATCH = "exact_match"
    CHAR_ACCURACY = "char_accuracy"
    REGEX = "regex"
    FORMAT = "format"
    LENGTH = "length"
    MATH_VERIFY = "math_verify"
    REASONING_GYM = "reasoning_gym"
    ENVIRONMENT = "environment"


class RewardServiceSpec(ApiModel):
    """A service that scores completions: docs/reference.md has its protocol."""

    url: Annotated[
        str,
        Field(max_length=1024),
        Follows(
            TextRule(
                r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
                "must be an address without user, password, query or fragment: write http://HOST/PATH "
                "or https://HOST/PATH, and put credentials into the Secret that headersSecret names",
            )
        ),
    ]
    """Address that each group is posted to, such as `https://judge.rewards.svc/score`."""
    headers_secret: ClaimName | None = None
    """Secret whose keys are headers of each request, such as `Authorization`. Only the first trainer pod
    mounts it. A key `ca.crt` is not sent: it is the certificate authority, in PEM, that has signed the
    certificate of the service."""

    @property
    def secret_volume(self) -> Volume | None:
        """The Secret that the first trainer pod mounts for it."""
        return None if self.headers_secret is None else Volume(VolumeKind.SECRET, self.headers_secret)


@rule(
    cel="self.source.startsWith('hf://') || !has(self.revision)",
    sentence="revision of a reward model is for hf:// sources: remove it",
    field=".revision",
)
def only_the_hub_has_reward_revisions(source: str, revision: str | None) -> bool:
    """A revision belongs to a repository of the Hub."""
    return source.startswith("hf://") or revision is None


class RewardModelSpec(ApiModel):
    """A sequence classifier with one label, which runs on the CPUs of the first trainer pod."""

    rules = (only_the_hub_has_reward_revisions,)

    source: RewardModelSource
    """`hf://ORG/NAME`, `pvc://CLAIM/PATH` or `file:///PATH` of a Hugging Face model directory, with its
    tokenizer."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model."""
    dtype: Annotated[Dtype, NOT_STORED] = Dtype.FLOAT32
    """Precision of its weights. Defaults to `float32`, which most CPUs compute fastest."""
    batch_size: Annotated[int, Field(ge=1, le=4096), NOT_STORED] = 8
    """Completions in one forward pass, all of the same prompt. Defaults to 8."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = None
    """CPU threads of each process that has the model. Defaults to the CPUs of the trainer pod divided by
    `workers`. Its CPUs are its cpu limit or else its cpu request, and at least the threads of its training
    processes."""


@rule(
    cel="[has(self.builtin), has(self.function), has(self.configMap), has(self.service), has(self.model)]"
    ".filter(is, is).size() == 1",
    sentence="a reward needs exactly one of builtin, function, configMap, service and model: set one and "
    "remove the others",
)
def has_one_source(
    builtin: BuiltinReward | None,
    function: str | None,
    config_map: CodeRef | None,
    service: RewardServiceSpec | None,
    model: RewardModelSpec | None,
) -> bool:
    """A reward has exactly one function."""
    return [builtin, function, config_map, service, model].count(None) == 4


@rule(
    cel="(has(self.builtin) && self.builtin == 'regex') == has(self.pattern)",
    sentence="pattern belongs to the builtin regex, which needs it: set both or neither",
    field=".pattern",
)
def pattern_belongs_to_regex(builtin: BuiltinReward | None, pattern: str | None) -> bool:
    """Only `regex` has a pattern."""
    return (builtin is BuiltinReward.REGEX) == (pattern is not None)


@rule(
    cel="(has(self.builtin) && self.builtin == 'length') == has(self.overlongTokens)",
    sentence="overlongTokens belongs to the builtin length, which needs it: set both or neither",
    field=".overlongTokens",
)
def overlong_belongs_to_length(builtin: BuiltinReward | None, overlong_tokens: int | None) -> bool:
    """Only `length` has overlongTokens."""
    return (builtin is BuiltinReward.LENGTH) == (overlong_tokens is not None)


class RewardSpec(ApiModel):
    """One reward function. Set one of `builtin`, `function`, `configMap`, `service` and `model`."""

    rules = (has_one_source, pattern_belongs_to_regex, overlong_belongs_to_length)

    name: Name
    """Name of the reward in metrics, such as rewards/NAME/mean."""
    weight: Annotated[float, Field(ge=-1000, le=1000), NOT_STORED] = 1.0
    """Factor of this reward in the weighted sum. Defaults to 1."""
    builtin: BuiltinReward | None = None
    """A function that comes with the runtime. `exact_match` is 1 when the completion is the answer, else 0.
    `char_accuracy` is the share of the answer's characters that are right. `regex` is 1 when `pattern` is
    found in the completion. `format` is 1 for `<think>...</think>` followed by `<answer>...</answer>`.
    `length` is 0 and falls to -1 over the last `overlongTokens` before sampling.maxTokens (DAPO's soft
    overlong punishment). `math_verify` is 1 when the completion's final expression equals the answer's.
    `reasoning_gym` is the scorer of a `reasoning-gym://` dataset. `environment` is the number that the agent
    of an environment returned."""
    pattern: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Python regular expression of the builtin `regex`, searched in the completion."""
    overlong_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Length of the interval in which the builtin `length` falls from 0 to -1, in tokens."""
    function: FunctionPath | None = None
    """`module:function` in the image, called the way TRL calls reward functions."""
    config_map: CodeRef | None = None
    """A function whose code is in a ConfigMap, called the way TRL calls reward functions."""
    service: RewardServiceSpec | None = None
    """An HTTP service. While it cannot be reached, or answers with 408, 429, 502, 503 or 504, it is asked
    again with growing pauses. After five minutes the attempt ends, and the next one asks again."""
    model: RewardModelSpec | None = None
    """A reward model: a sequence classifier whose only logit is the reward. It runs on the CPUs of the first
    trainer pod. It reads the prompt and the completion as one text, or through its chat template where the
    prompt is a chat."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600), NOT_STORED] = 60
    """How long one call may take; it scores the completions of one prompt. When it takes longer, they count
    as failed. Defaults to 60."""
    max_failure_share: Annotated[float, Field(ge=0, le=1), NOT_STORED] = 0.5
    """Largest share of a step's samples that may fail. A sample fails when the function raises, hangs or
    returns no number, and then has no reward. When more fail, the job fails with the function's own error. A
    call that hangs or whose process dies does not count if nothing else in the step fails, or once the
    function has scored a step; maxFailingSteps limits those. Defaults to 0.5."""
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None
    """How many calls are made at the same time, each for the completions of another prompt: by processes in
    the first trainer pod, or as requests to a service. Defaults to the number of the pod's CPUs for code of
    yours, math_verify and reasoning_gym, to 1 for other builtins and for a model, which each process loads,
    and to 16 for a service. Rewards do not depend on it, unless a function remembers its calls: set it to 1
    then."""
    max_failing_steps: Annotated[int, Field(ge=1, le=1_000_000), NOT_STORED] = 10
    """The job fails after this many steps in a row in which a call failed. Defaults to 10."""

    @property
    def is_code(self) -> bool:
        """Whether it is code, of the user or built in: it starts at once, and needs no network."""
        return self.service is None and self.model is None

    @property
    def is_remote(self) -> bool:
        """Whether a call waits for a network and not for the CPUs of the pod."""
        return self.service is not None

    @property
    def secret_volume(self) -> Volume | None:
        """The Secret that the first trainer pod mounts for its calls."""
        return None if self.service is None else self.service.secret_volume

    @property
    def is_worth_cores(self) -> bool:
        """Whether a call may be slow enough for several to be made at once."""
        return self.is_code and self.builtin in (None, BuiltinReward.MATH_VERIFY, BuiltinReward.REASONING_GYM)


# About the whole spec


@rule(
    cel="!has(self.rewards) || self.rewards.all(reward, !has(reward.overlongTokens) || "
    "reward.overlongTokens <= self.sampling.maxTokens)",
    sentence="overlongTokens in rewards must not exceed sampling.maxTokens ({sampling.maxTokens}): lower it "
    "or raise maxTokens",
    field=".rewards",
)
def overlong_fits(rewards: tuple[RewardSpec, ...] | None, sampling: SamplingSpec) -> bool:
    """The interval of `length` is not longer than the longest completion."""
    return all((reward.overlong_tokens or 0) <= sampling.max_tokens for reward in rewards or ())


@rule(
    cel="(has(self.dataset) && self.dataset.source.startsWith('reasoning-gym://')) || !has(self.rewards) || "
    "!self.rewards.exists(reward, has(reward.builtin) && reward.builtin == 'reasoning_gym')",
    sentence="rewards have the builtin reasoning_gym, which is the scorer of a reasoning-gym:// dataset: "
    "take such a dataset or another reward",
    field=".rewards",
)
def scorer_has_its_dataset(rewards: tuple[RewardSpec, ...] | None, dataset: DatasetSpec | None) -> bool:
    """The scorer of reasoning-gym needs its own prompts."""
    has_scorer = any(reward.builtin is BuiltinReward.REASONING_GYM for reward in rewards or ())
    return not has_scorer or (dataset is not None and dataset.source.startswith("reasoning-gym://"))


@rule(
    cel="!has(self.rewards) || self.rewards.exists(reward, !has(reward.weight) || reward.weight != 0.0)",
    sentence="rewards must not all have weight 0, because then nothing is learned: set the weight of at "
    "least one",
    field=".rewards",
)
def some_reward_counts(rewards: tuple[RewardSpec, ...] | None) -> bool:
    """At least one reward has an effect."""
    return rewards is None or any(reward.weight != 0 for reward in rewards)
