"""What makes the samples of groups: the engines, or the user's function with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import Engines, Rollout

Take = Callable[[Group, int, Rollout], None]
"""Takes a sample of a group as soon as it is finished, with its place in the group. Called in any thread,
once for each sample; it must not raise."""


class Source(Protocol):
    """Makes samples."""

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """Make every sample that `groups` miss. With `stays_awake` another call follows, or `Engines.rest`;
        without it, engines that share the trainer's memory give it back."""
        ...


@dataclass(frozen=True)
class EngineSource:
    """The engines: a sample is one request."""

    engines: Engines

    async def sample(self, groups: Sequence[Group], *, take: Take, stays_awake: bool = False) -> None:
        """See `Source`."""
        places = [(group, sample) for group in groups for sample in group.missing]
        await self.engines.generate(
            [group.requests[sample] for group, sample in places],
            on_finished=lambda index, rollout: take(*places[index], rollout),
            stays_awake=stays_awake,
        )
