"""When the steps of a run would end if the product cost nothing: a simulation of events, with the product's
bound on staleness. Pure.

G completions of a prompt.
"""

import heapq
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from grpo_runtime.rollouts.staleness import StalenessBound


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How long a completion takes."""

    engine_seconds: float = 0.0
    """With a place at an engine, which it waits for where all are taken."""
    tool_seconds: float = 0.0
    """After that, without one."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What else takes time, in seconds."""

    train: float
    """From the moment in which a step has its groups until it is trained."""
    sync: float
    """From the beginning of a weight sync until engines sample with the new weights."""
    read: float
    """The part of it that the trainer waits for, in asynchronous training."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What came of it: when each step ended, in seconds since the run began, and how old the groups were."""

    ends: Sequence[float]
    staleness: float


@dataclass(eq=False)
class _Group:
    ordinal: int
    version: int
    """Of the weights that sampled its oldest token; until one is sampled, of those when it was begun."""
    num_left: int
    is_sampled_from: bool = False


@dataclass(kw_only=True)
class Simulation:
    """A run of `steps` steps, whose prompt number i has the completions [G] that `completions` gives for i.
    `num_places` are those of all engines together, None for as many as are asked for."""

    completions: Callable[[int], Sequence[Completion]]
    bound: StalenessBound
    steps: int
    costs: Costs
    num_places: int | None = None
    _now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _num_events: int = 0
    _free_places: float = 0.0
    _queue: deque[tuple[_Group, Completion]] = field(default_factory=deque)
    _finished: list[_Group] = field(default_factory=list)
    _unfinished: dict[_Group, None] = field(default_factory=dict)
    _num_begun: int = 0
    _num_taken: int = 0
    _served: int | None = None
    _is_syncing: bool = False

    def run(self) -> Simulated:
        """Every step, one after the other."""
        self._free_places = float("inf") if self.num_places is None else self.num_places
        ends: list[float] = []
        staleness: list[int] = []
        for step in range(self.steps):
            self._begin_sync(step)
            trained = self._choose(step)
            staleness += [step - group.version for group in trained]
            self._finished = [group for group in self._finished if group not in trained]
            self._num_taken += 1
            self._begin_groups()
            self._wait(self.costs.train)
            ends.append(self._now)
        return Simulated(ends=ends, staleness=statistics.fmean(staleness))

    def _begin_sync(self, step: int) -> None:
        while self._is_syncing:
            self._advance()
        self._is_syncing = True

        def serve() -> None:
            self._served, self._is_syncing = step, False
            self._begin_groups()

        self._after(self.costs.sync, serve)
        # before the first weights, and in synchronous training, there is nothing else to do
        self._wait(self.costs.read if step and self.bound.max_staleness else self.costs.sync)

    def _choose(self, step: int) -> Sequence[_Group]:
        while not (trained := self.bound.choose(self._finished, self._unfinished, step=step).trained):
            self._advance()
        return trained

    def _begin_groups(self) -> None:
        if self._served is None:
            return
        num_outstanding = len(self._finished) + len(self._unfinished)
        room = self.bound.room(num_outstanding, step=self._num_taken, version=self._served)
        num_to_come = (self.steps - self._num_taken) * self.bound.groups_per_step - num_outstanding
        for _ in range(min(room, num_to_come)):
            completions = self.completions(self._num_begun)
            group = _Group(self._num_begun, self._served, num_left=len(completions))
            self._num_begun += 1
            self._unfinished[group] = None
            self._queue.extend((group, completion) for completion in completions)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self._free_places >= 1:
            group, completion = self._queue.popleft()
            if not group.is_sampled_from:
                assert self._served is not None
                group.is_sampled_from, group.version = True, self._served
            self._free_places -= 1
            self._after(completion.engine_seconds, partial(self._leave, group, completion))

    def _leave(self, group: _Group, completion: Completion) -> None:
        """A completion leaves its engine."""
        self._free_places += 1
        self._hand_out()
        self._after(completion.tool_seconds, partial(self._end, group))

    def _end(self, group: _Group) -> None:
        group.num_left -= 1
        if not group.num_left:
            del self._unfinished[group]
            self._finished.append(group)

    def _after(self, seconds: float, happening: Callable[[], None]) -> None:
        # the number keeps those of one moment in order
        heapq.heappush(self._events, (self._now + seconds, self._num_events, happening))
        self._num_events += 1

    def _advance(self) -> None:
        """Let the next thing happen."""
        self._now, _, happening = heapq.heappop(self._events)
        happening()

    def _wait(self, seconds: float) -> None:
        until = self._now + seconds
        while self._events and self._events[0][0] <= until:
            self._advance()
        self._now = until
