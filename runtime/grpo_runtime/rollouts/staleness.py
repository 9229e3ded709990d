"""How old a group may be when it is trained, and what follows: which groups may begin, which a step trains,
and which it waits for.

After `step` trained steps, the next update may train a group whose oldest token was sampled with version
`step - max_staleness` or a newer one. A group of version v is therefore trained by update v + max_staleness
at the latest (updates, like versions, count from 0): its last step. The groups left after an update can all
be trained in time if, for every j, the next j updates have room for all that have their last step among them:
the condition under which earliest-deadline-first scheduling meets every deadline (Liu and Layland, 1973).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Aged(Protocol):
    """What has a version: that of the weights which sampled its oldest token, in finished steps."""

    @property
    def version(self) -> int: ...


G = TypeVar("G", bound=Aged)


@dataclass(frozen=True)
class Choice(Generic[G]):
    """What a step is trained on, or what it waits for."""

    trained: Sequence[G] = ()
    """In the order in which they finished; empty while the step has to wait."""
    due: Sequence[G] = ()
    """Unfinished groups, of which the step needs `num_due`: without them it would leave more than later steps
    can train in time."""
    num_due: int = 0


@dataclass(frozen=True, kw_only=True)
class StalenessBound:
    """No step trains a group that is more than `max_staleness` steps old. 0 is the synchronous loop."""

    max_staleness: int
    groups_per_step: int

    def room(self, num_outstanding: int, *, step: int, version: int) -> int:
        """How many groups may begin on engines that have `version`, when `step` updates have taken their
        groups and so many others are begun. None of those may have a newer version."""
        last_step = version + self.max_staleness
        return max(0, (last_step - step + 1) * self.groups_per_step - num_outstanding)

    def choose(self, finished: Sequence[G], unfinished: Iterable[G], *, step: int) -> Choice[G]:
        """What the update after `step` trained steps takes of `finished`, which are in the order of
        finishing."""
        # once each: what is asked for a version looks at every completion
        last_steps = [self._last_step(group) for group in finished]
        left = [(self._last_step(group), group) for group in unfinished]
        taken: set[int] = set()
        for ahead in range(self.max_staleness + 1):
            last = step + ahead
            of_these = [index for index, last_step in enumerate(last_steps) if last_step <= last]
            open_ones = [group for last_step, group in left if last_step <= last]
            num_needed = len(of_these) + len(open_ones) - ahead * self.groups_per_step
            free = [index for index in of_these if index not in taken]
            num_lacking = num_needed - (len(of_these) - len(free))
            if num_lacking > len(free):
                return Choice(due=open_ones, num_due=num_lacking - len(free))
            taken.update(free[: max(0, num_lacking)])
        others = (index for index in range(len(finished)) if index not in taken)
        taken.update(
            index for index, _ in zip(others, range(self.groups_per_step - len(taken)), strict=False)
        )
        if len(taken) < self.groups_per_step:
            return Choice()
        assert len(taken) == self.groups_per_step, "more groups are outstanding than can be trained in time"
        return Choice(trained=[finished[index] for index in sorted(taken)])

    def is_kept_by(self, groups: Iterable[Aged], *, step: int) -> bool:
        """Whether all of these can be trained in time by the updates after `step` trained steps."""
        return self.is_kept_in_order(sorted(groups, key=self._last_step), step=step)

    def is_kept_in_order(self, groups: Iterable[Aged], *, step: int) -> bool:
        """Whether they can where they are trained in this order."""
        last_steps = map(self._last_step, groups)
        return all(place < (last - step + 1) * self.groups_per_step for place, last in enumerate(last_steps))

    def _last_step(self, group: Aged) -> int:
        return group.version + self.max_staleness
