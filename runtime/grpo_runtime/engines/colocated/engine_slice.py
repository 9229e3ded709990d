"""A rank's part of the engines: which engine it holds, or has a part of, and which requests are its
own."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import RankSync
from grpo_runtime.engines.colocated.rank_messages import Channel, GenerateCommand, SyncCommand
from grpo_runtime.rollouts.interface import GenerateRequest, OnFinished, Probe, Rollout
from grpo_runtime.weight_sync.source import WeightSource


def parts_of(
    requests: Sequence[GenerateRequest], *, num_engines: int, engine_of: Mapping[int, int]
) -> list[list[int]]:
    """The indices of the requests of each engine. A turn goes to the engine that `engine_of` has for its
    session, since that has the turns before in its cache. The others are shared so that all engines have
    equally many, as far as they can, and among equals equally many sessions. Neighbours, such as those of a
    group, are together."""
    parts: list[list[int]] = [[] for _ in range(num_engines)]
    others: list[int] = []
    for place, request in enumerate(requests):
        engine = None if request.session is None else engine_of.get(request.session)
        (others if engine is None else parts[engine]).append(place)
    sizes, num_sessions = [len(part) for part in parts], Counter(engine_of.values())
    for _ in others:
        fewest = min(range(num_engines), key=lambda engine: (sizes[engine], num_sessions[engine], -engine))
        sizes[fewest] += 1
    left = iter(others)
    for part, size in zip(parts, sizes, strict=True):
        part.extend(islice(left, size - len(part)))
    return parts


class EngineOfRank(Protocol):
    """What a rank does with its engine: a `RankEngine`, or a `RecoveringEngine`, which says more of it."""

    @property
    def num_finished(self) -> int: ...

    @property
    def is_starting_again(self) -> bool: ...

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync: ...

    def rest(self) -> None: ...

    def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]: ...


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

    def generate(self, command: GenerateCommand, *, on_finished: OnFinished | None = None) -> list[Rollout]:
        """Sample the requests of this rank's engine. All ranks of an engine have the same completions.

        `on_finished` gets each as it finishes, with the index among the engine's requests.
        """
        own = self.requests_of(self.channel.rank // self.ranks_per_engine, command)
        return self._engine.generate(own, on_finished=on_finished, stays_awake=command.stays_awake)

    def requests_of(self, engine: int, command: GenerateCommand) -> Sequence[GenerateRequest]:
        """What an engine, by its number, is to sample."""
        return [command.requests[place] for place in command.parts[engine]]


def engine_name(number: int) -> str:
    """What an engine of mode Colocated is called."""
    return f"engine-{number}"


def num_colocated_engines(run_config: RunConfig) -> int:
    """How many engines the training processes hold together."""
    return run_config.topology.world_size // run_config.engine.tensor_parallel_size
