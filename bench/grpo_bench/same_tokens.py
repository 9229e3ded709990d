"""Checks that two ways of sampling draw the same tokens. Pure."""

from collections.abc import Sequence

from grpo_bench.errors import BenchError

Tokens = tuple[int, ...]


class SameTokens:
    """Remembers the samples of each step and compares later samples of that step with them."""

    def __init__(self) -> None:
        self._drawn: dict[int, Sequence[Tokens]] = {}

    def check(self, step: int, drawn: Sequence[Tokens]) -> None:
        """Raises BenchError, with the first sample that differs, unless all samples are as before."""
        before = self._drawn.setdefault(step, drawn)
        if len(drawn) != len(before):
            raise BenchError(f"the two ways drew {len(before)} and {len(drawn)} samples in step {step}")
        different = [place for place, tokens in enumerate(drawn) if tokens != before[place]]
        if different:
            place = different[0]
            raise BenchError(
                f"the two ways drew different tokens for {len(different)} of {len(drawn)} samples of step "
                f"{step}: sample {place} is {before[place]} in one and {drawn[place]} in the other"
            )
