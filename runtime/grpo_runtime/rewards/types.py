"""What is asked of reward functions and what comes back. Shapes: B completions, F functions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_REASON_CHARACTERS = 2000
"""A failure's reason is cut to this."""

RewardCall = Callable[..., list[Any]]
"""TRL's convention: keyword arguments in, a reward for every completion out (None: does not apply)."""


@dataclass(frozen=True, kw_only=True)
class BuiltinOptions:
    """What built-in rewards are told by the job; each reads what it needs."""

    answer_column: str = "answer"
    pattern: str = ""
    max_tokens: int = 0
    overlong_tokens: int = 0
    dataset_source: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Unscorable:
    """Instead of a reward: this one sample failed, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RewardCode:
    """A function in a file that a ConfigMap holds."""

    path: Path
    function: str
    place: str
    """The file as people know it: key and ConfigMap."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """One reward function of the run: exactly one of `builtin`, `function` and `code` is set."""

    name: str
    """Its name in metrics: rewards/NAME/mean."""
    builtin: str | None = None
    """A name in `builtin.BUILTIN_REWARDS`."""
    function: str | None = None
    """`module:attribute`, importable where the trainer runs."""
    code: RewardCode | None = None
    """Run in the worker process only."""
    options: BuiltinOptions = field(default_factory=BuiltinOptions)
    """For `builtin`."""
    timeout_seconds: float = 60.0
    """For one call, which scores all completions of a step."""
    max_failure_share: float = 1.0
    """When more than this share of a step's completions fail, the run ends."""


@dataclass(frozen=True, kw_only=True)
class RewardRequest:
    """All completions of a step. Every list has B entries, in the same order."""

    prompts: list[Any]
    """As in the dataset: texts, or lists of messages."""
    completions: list[str]
    """Decoded, without special tokens."""
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    """The dataset's other columns by name, the answer among them."""
    step: int
    """Optimizer steps done so far; reward functions see it as trainer_state.global_step."""
    total_steps: int


@dataclass(frozen=True, kw_only=True)
class RewardFailure:
    """A call that gave no usable rewards, or single rewards that were none."""

    name: str
    """The reward function's."""
    reason: str
    """One sentence; in further lines, where the function raised, the end of its traceback."""
    num_samples: int
    """Completions that count as not scored because of it."""
    sample: dict[str, Any]
    """The first of them: its prompt and completion."""


@dataclass(frozen=True, kw_only=True)
class RewardMatrix:
    """The rewards of one step."""

    names: tuple[str, ...]
    """The F functions, in the order of the columns."""
    values: tuple[tuple[float | None, ...], ...]
    """[B][F], finite; None where a function does not apply to a completion or failed on it."""
    failures: tuple[RewardFailure, ...]
    metrics: dict[str, float]
    """rewards/NAME/failures for every function: completions it failed on in this step. And what functions
    reported through log_metric: the mean over their calls of it."""
