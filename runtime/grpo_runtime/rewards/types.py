"""Requests to reward functions and their results. B completions, F functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

RewardCall = Callable[..., list[Any]]
"""TRL's convention: takes keyword arguments and returns a reward for every completion, None where it does not
apply."""
OWN_ARGUMENTS = frozenset(
    {
        *("prompts", "completions", "completion_ids", "prefills", "returned", "trajectories"),
        *("trainer_state", "log_metric", "log_extra"),
    }
)
"""Keyword arguments that are of the run, whatever columns the data have."""
TRIAL_TEXT = "1"
"""The completion that functions are tried with before the first step, as far as the tokenizer can write
it."""


@dataclass(frozen=True, kw_only=True)
class BuiltinOptions:
    """What a job says to built-in rewards. `builtin.BUILTIN_REWARDS` says which one needs what."""

    answer_column: str = "answer"
    pattern: str = ""
    max_tokens: int = 0
    overlong_tokens: int = 0
    dataset_source: str = ""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class BuiltinFunction:
    """A function that comes with the runtime."""

    name: str
    """In `builtin.BUILTIN_REWARDS`."""
    options: BuiltinOptions = field(default_factory=BuiltinOptions)


@dataclass(frozen=True, kw_only=True)
class ImportedFunction:
    """A function of the user in the image."""

    path: str
    """`module:attribute`, importable where the trainer runs."""


@dataclass(frozen=True)
class Unscorable:
    """Stands in place of a reward for a completion that could not be scored, and says why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RewardService:
    """An HTTP service."""

    url: str
    job: str
    """Uid of the job, so that a service can tell its requests from those of others."""
    secret: str | None = None
    folder: Path | None = None
    """Where `secret` is mounted: see `service_headers`."""


@dataclass(frozen=True, kw_only=True)
class RewardModel:
    """A sequence classifier in a directory."""

    folder: Path
    source: str
    """What error messages call it."""
    dtype: str
    batch_size: int
    num_threads: int
    """CPU threads of each process that has it."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """One reward function of the run."""

    name: str
    """Its name in metrics: rewards/NAME/mean."""
    source: Any
    """What it calls: the dataclass that `kinds.REWARD_KINDS` has for its kind."""
    timeout_seconds: float = 60.0
    """Deadline of one call, which scores one chunk."""
    max_failure_share: float = 1.0
    """When more than this share of a step's completions fail, the run ends."""
    max_failing_steps: int = 10
    """After so many steps in a row in which a call failed the run ends."""
    workers: int = 1
    """Processes that call it at the same time, or requests to a service."""


@dataclass(frozen=True, kw_only=True)
class RewardRequest:
    """A chunk of a step: the completions of one prompt, or of several, because functions compare them. Every
    list has B entries, in the same order."""

    prompts: list[Any]
    """Prompts as in the dataset: a text or a list of messages each."""
    completions: list[str]
    """Completions as the policy wrote them, without the tokens that end them."""
    prefills: list[str] = field(default_factory=list)
    """What the prompt has written of each completion itself: see `prefill_of`. Empty where nobody asks."""
    returned: list[float | None] = field(default_factory=list)
    """What the agent that made each completion returned. Empty in a run without environments."""
    trajectories: list[Mapping[str, Any] | None] = field(default_factory=list)
    """The whole episode of each, as `Rollout.trajectory`. Empty in a run without environments."""
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    """The dataset's other columns by name, the answer included."""
    group_ids: list[int] = field(default_factory=list)
    """Index of each completion's group in the step; empty where no function asks for it."""
    step: int
    """Optimizer steps done so far; reward functions see it as trainer_state.global_step."""
    is_evaluation: bool = False
    """Whether it is of the evaluation after these steps, and not of the step that follows them."""
    total_steps: int


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A service that cannot be reached, or answers nothing."""

    url: str
    why: str
    """What came of the newest request."""
    seconds: float
    """Since the first request without an answer was sent."""


@dataclass(frozen=True, kw_only=True)
class OpenCalls:
    """A function that has chunks which it has not answered yet, those that wait for a process included."""

    name: str
    number: int
    outage: Outage | None = None


class FailureKind(Enum):
    """How a function failed."""

    RAISED = "raised"
    """The call raised, or did not return a list of rewards."""
    LOST = "lost"
    """The call missed its deadline, or its process died."""
    REFUSED = "refused"
    """Single values are no rewards."""


@dataclass(frozen=True, kw_only=True)
class RewardFailure:
    """A call that failed, or single values that are not rewards."""

    name: str
    """Name of the reward function."""
    kind: FailureKind
    reason: str
    """One sentence. Where the function raised, further lines hold the end of its traceback."""
    num_samples: int
    """Completions that have no reward because of it."""
    sample: dict[str, Any]
    """The first of them: its prompt and completion."""
    is_misfit: bool = False
    """Whether the function takes other arguments than a run has, or returns something else than a list of so
    many numbers, so that no call of it can succeed."""
