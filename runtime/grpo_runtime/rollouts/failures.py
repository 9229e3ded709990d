"""Groups that fail one after the other, and when they end a job. Pure."""

from collections.abc import Callable, Collection, Iterable

from grpo_api.contract.left_out import MOST_FAILED_IN_A_ROW, count_groups
from grpo_runtime.rollouts.group import Group


class FailuresInARow:
    """How many groups of each environment have failed since one of its groups was sampled.

    Groups of one environment say nothing of another: an agent that fails takes its tries, with pauses between
    them, so all of its groups fail in the same moment, long after those of others are finished.
    """

    def __init__(
        self,
        *,
        groups_per_step: int,
        environments: Collection[str] = ("",),
        environment: Callable[[Group], str] = lambda group: "",
    ) -> None:
        """`environments` are all that make groups of the run's prompts, and `environment` gives the one that
        makes a group. What makes all groups of a run without environments counts as one."""
        self._most = max(MOST_FAILED_IN_A_ROW, groups_per_step)
        self._environments = environments
        self._environment = environment
        self._counts: dict[str, int] = {}

    def count(self, *, failed: Iterable[Group] = (), sampled: Iterable[Group] = ()) -> None:
        """More groups have ended, together. An environment of which one is sampled has none in a row."""
        self._counts = count_groups(
            self._counts,
            left_out=map(self._environment, failed),
            sampled=set(map(self._environment, sampled)),
        )

    def count_of_all(self) -> None:
        """One more group has failed by what all environments use, such as the engines."""
        self._counts = count_groups(self._counts, left_out=self._environments, sampled=())

    @property
    def is_end(self) -> bool:
        """Whether so many have failed of every environment that there is nothing left to train on."""
        return all(self._counts.get(name, 0) >= self._most for name in self._environments)
