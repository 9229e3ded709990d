"""A rank's place among the engines: which engine it holds, or has a part of, and which requests are its
own."""

from collections.abc import Callable, Sequence
from typing import Protocol

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.colocated.messages import Channel, GenerateCommand, Sampled, SyncCommand
from grpo_runtime.colocated.rank_engine import Completion, OnCompleted, RankSync
from grpo_runtime.rollout.interface import GenerateRequest, Probe
from grpo_runtime.slices import slice_of
from grpo_runtime.weight_sync.source import WeightSource


class EngineOfRank(Protocol):
    """What a rank does with its engine: a `RankEngine`, or a `RecoveringEngine`, which says more of it."""

    @property
    def num_finished(self) -> int: ...

    @property
    def is_starting_again(self) -> bool: ...

    def weight_version(self) -> PolicyVersion: ...

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync: ...

    def rest(self) -> None: ...

    def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_completed: OnCompleted | None = None,
        stays_awake: bool = False,
    ) -> list[Completion]: ...


class EngineSlice:
    """What one rank holds: an engine, or with tensor parallelism a part of one.

    Ranks [k * ranks_per_engine, (k + 1) * ranks_per_engine) hold engine k, as vLLM itself groups them.
    """

    def __init__(
        self,
        engine: EngineOfRank,
        channel: Channel,
        *,
        ranks_per_engine: int,
        enter_thread: Callable[[], None] = lambda: None,
    ) -> None:
        """`enter_thread` is called in the thread that will use the engine, before it does."""
        self.channel = channel
        self.enter_thread = enter_thread
        self.ranks_per_engine = ranks_per_engine
        self.num_engines = channel.world_size // ranks_per_engine
        self._engine = engine

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank of its engine."""
        return self.channel.rank % self.ranks_per_engine == 0

    def num_finished(self) -> int:
        """How many samples of this step the engine of this rank has finished. May be called in another
        thread."""
        return self._engine.num_finished

    def is_starting_again(self) -> bool:
        """Whether the engine of this rank was lost and the next one does not serve yet. May be called in
        another thread."""
        return self._engine.is_starting_again

    def sync(self, command: SyncCommand, *, weights: WeightSource) -> RankSync:
        """Load `weights`, which are this rank's copy of the policy."""
        return self._engine.sync(weights, version=command.version, probe=command.probe)

    def rest(self) -> None:
        """Let the engine sleep."""
        self._engine.rest()

    def generate(
        self, command: GenerateCommand, *, on_completed: Callable[[int, Sampled], None] | None = None
    ) -> Sampled:
        """Sample the requests of this rank's engine. All ranks of an engine have the same completions.

        `on_completed` gets each as it finishes, with the index among the engine's requests.
        """
        index = self.channel.rank // self.ranks_per_engine
        own = command.requests[slice_of(len(command.requests), index=index, num_slices=self.num_engines)]

        def pass_on(index: int, completion: Completion) -> None:
            assert on_completed is not None
            on_completed(index, Sampled(self._engine.weight_version(), [completion]))

        completions = self._engine.generate(
            own, on_completed=pass_on if on_completed else None, stays_awake=command.stays_awake
        )
        return Sampled(self._engine.weight_version(), completions)


def num_colocated_engines(run_config: RunConfig) -> int:
    """How many engines the training processes hold together."""
    return run_config.topology.world_size // run_config.engine.tensor_parallel_size
