"""Whether two ways of sampling do the same thing. Pure."""

from collections.abc import Sequence

from grpo_bench.errors import BenchError

Tokens = tuple[int, ...]


class SameTokens:
    """Remembers what was drawn in a step, and holds whoever draws it again to that."""

    def __init__(self) -> None:
        self._drawn: dict[int, Sequence[Tokens]] = {}

    def check(self, step: int, drawn: Sequence[Tokens]) -> None:
        """Raises BenchError, with the first sample that is another, unless all are what they were."""
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
