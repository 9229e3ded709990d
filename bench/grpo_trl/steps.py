"""What both sides tell of their steps, and the check that both did what was asked for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from grpo_bench.errors import BenchError
from grpo_trl.cases import Case

PHASES = ("generate", "train", "score", "sync")
_LENGTHS = ("completions/min_length", "completions/max_length")
_NUM_TOKENS = "num_tokens"


@dataclass(frozen=True)
class Logged:
    """A step as it was logged: when, and its metrics by TRL's names."""

    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class Step:
    """A measured step. `phases` are seconds by PHASES, as far as the side tells them."""

    seconds: float
    phases: Mapping[str, float]

    @property
    def rest(self) -> float:
        """Seconds in none of the phases."""
        return self.seconds - sum(self.phases.values())


def measured_steps(logged: Sequence[Logged], *, case: Case, side: str) -> list[Step]:
    """Every step but the first, from the moment the one before was logged.

    Raises BenchError unless `side` logged every step, with the completions and tokens of `case`.
    """
    if len(logged) != 1 + case.num_steps:
        raise BenchError(f"{side} logged {len(logged)} steps of {case.name} instead of {1 + case.num_steps}")
    for number, step in enumerate(logged, start=1):
        lengths = {step.values[name] for name in _LENGTHS}
        if lengths != {case.completion_tokens}:
            raise BenchError(
                f"{side} made completions of {sorted(lengths)} tokens in step {number} of {case.name} "
                f"instead of {case.completion_tokens}"
            )
        if step.values[_NUM_TOKENS] != number * case.tokens_per_step:
            raise BenchError(
                f"{side} counts {step.values[_NUM_TOKENS]:.0f} tokens after step {number} of {case.name} "
                f"instead of {number * case.tokens_per_step}"
            )
    return [
        Step(
            seconds=after.time - before.time,
            phases={
                phase: after.values[key]
                for phase in PHASES
                if (key := f"time/{phase}_seconds") in after.values
            },
        )
        for before, after in pairwise(logged)
    ]
