"""Environments of which no group can be trained on, while others can be, and when that is reported. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Self

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.v1alpha1.status import ShortText

MOST_FAILED_IN_A_ROW = 16
"""So many groups that fail one after the other are no accident of single groups. Of one environment they are
reported; of every environment they end the job."""
LEFT_OUT_IN_A_ROW = "env/{}/left_out_in_a_row"
"""The metric that counts them, by the name of the environment."""


class LeftOutEnvironment(ApiModel):
    """An environment all of whose newest groups were left out."""

    name: ShortText
    num_groups: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """How many in a row."""

    @classmethod
    def of_metrics(cls, values: Mapping[str, float]) -> tuple[Self, ...]:
        """Those that are reported, as the metrics of a step count them."""
        before, after = LEFT_OUT_IN_A_ROW.split("{}")
        found = (
            cls(name=name.removeprefix(before).removesuffix(after), num_groups=int(num))
            for name, num in sorted(values.items())
            if name.startswith(before) and name.endswith(after) and num >= MOST_FAILED_IN_A_ROW
        )
        return tuple(found)


def left_out_message(found: Sequence[LeftOutEnvironment]) -> str:
    """What is wrong and what to do, as a sentence."""
    said = [f"of environment {each.name} the last {each.num_groups} groups were left out" for each in found]
    return (
        f"{' and '.join(said)}, because too many of their episodes failed three times, and nothing is "
        "learned there: the log of the first trainer pod has each failure of its agent"
    )


def count_groups(
    counts: Mapping[str, int], *, left_out: Iterable[str], sampled: Collection[str]
) -> dict[str, int]:
    """Groups in a row that were left out, by environment, after one more step. `left_out` has the environment
    of each group that was left out, and `sampled` the environments of the others."""
    found = dict(counts)
    for name in left_out:
        found[name] = found.get(name, 0) + 1
    return {name: num for name, num in found.items() if name not in sampled}
