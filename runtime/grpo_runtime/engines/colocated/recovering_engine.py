"""The engine of a rank in a process of its own: one that ends or hangs is started again.

It gets the newest weights and is verified before it samples what the one before has not finished. A request's
seed decides its tokens, so nothing is lost but time. An engine that ends while the trainer computes is
started when it is needed next: until then the trainer uses the memory.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import LocalEngine, RankEngine, RankSync
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, OnFinished, Probe, Rollout
from grpo_runtime.weight_sync.interface import Backend, WeightSyncError
from grpo_runtime.weight_sync.source import WeightSource

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Most failures in a row without a sample finished in between."""


class ReplaceableEngine(LocalEngine, Protocol):
    """A LocalEngine that can be lost: EngineError and WeightSyncError say that it is.

    `patience` says how many times the usual time it has before it counts as hung.
    """

    patience: float

    @property
    def finished(self) -> Mapping[int, Rollout]:
        """What the last call of `sample` has finished, by the index of the request; also when it failed."""
        ...

    def close(self) -> None:
        """End it, and wait until it has ended."""
        ...


@dataclass(frozen=True)
class _Newest:
    """The weights that an engine must have to sample."""

    weights: WeightSource
    version: PolicyVersion
    probe: Probe | None


class RecoveringEngine:
    """What `RankEngine` is for an engine that is never lost."""

    def __init__(
        self,
        start: Callable[[], ReplaceableEngine],
        *,
        backend: Backend[Any],
        sleep_level: int,
        timeout_seconds: float,
        release_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the first engine, and raises what that raises. `release_memory` as in `RankEngine`."""
        self._start = start
        self._backend = backend
        self._sleep_level = sleep_level
        self._timeout_seconds = timeout_seconds
        self._release_memory = release_memory
        self._newest: _Newest | None = None
        self._num_failures = 0
        self._num_done = 0
        """Samples of this step that lost engines have finished."""
        self._is_starting_again = False
        self._engine: ReplaceableEngine | None = None
        self._rank_engine: RankEngine | None = None
        self._current()

    @property
    def num_finished(self) -> int:
        """How many samples of the running call, or else of the last one, are finished, by this engine or one
        before. May be read in another thread."""
        engine = self._rank_engine
        return self._num_done + (engine.num_finished if engine else 0)

    @property
    def is_starting_again(self) -> bool:
        """Whether an engine was lost and the next one does not serve yet. May be read in another thread."""
        return self._is_starting_again

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync:
        """Give the engine the weights, and the next ones while engines are lost. The caller compares the
        probe's error with its tolerance. Raises EngineError when one engine after the other is lost."""
        self._newest = newest = _Newest(weights, version, probe)
        self._num_done = 0
        while True:
            try:
                return self._load(newest)
            except (EngineError, WeightSyncError) as error:
                self._lose(error)

    def rest(self) -> None:
        """Let the engine sleep, because training follows. One that is lost on its way to sleep is started by
        the next sync."""
        if self._rank_engine is not None:
            try:
                self._rank_engine.rest()
            except (EngineError, WeightSyncError) as error:
                self._lose(error)

    def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        """Sample all requests; what an engine that is lost has not finished is the next one's. The engine
        sleeps afterwards, unless it is to stay awake. Raises EngineError when one engine after the other is
        lost."""
        done: dict[int, Rollout] = {}
        self._num_done = 0
        while True:
            places = [index for index in range(len(requests)) if index not in done]
            try:
                rollouts = self._serving().generate(
                    [requests[index] for index in places],
                    on_finished=_placed(on_finished, places),
                    stays_awake=stays_awake,
                )
                done |= zip(places, rollouts, strict=True)
                self._num_failures = 0
                self._be_patient()
                break
            except (EngineError, WeightSyncError) as error:
                # without requests nothing was sampled, and what it says it has finished is of another step
                finished = self._finished() if places else {}
                done |= {places[index]: rollout for index, rollout in finished.items()}
                self._num_done = len(done)
                if finished:
                    self._num_failures = 0
                self._lose(error)
                if len(done) == len(requests):
                    # it was lost on its way to sleep: the next sync starts another one
                    break
        return [done[index] for index in range(len(requests))]

    def _current(self) -> RankEngine:
        """The engine, which is started if there is none."""
        if self._rank_engine is None or self._engine is None:
            self._release_memory()
            self._engine = self._start()
            self._be_patient()
            self._rank_engine = RankEngine(
                self._engine,
                backend=self._backend,
                sleep_level=self._sleep_level,
                timeout_seconds=self._timeout_seconds,
                release_memory=self._release_memory,
            )
        return self._rank_engine

    def _be_patient(self) -> None:
        """Each time twice as patient: the engine before may only have been slow."""
        if self._engine is not None:
            self._engine.patience = 2.0**self._num_failures

    def _load(self, newest: _Newest) -> RankSync:
        sync = self._current().sync(newest.weights, version=newest.version, probe=newest.probe)
        self._is_starting_again = False
        return sync

    def _serving(self) -> RankEngine:
        """The engine with the newest weights, verified; one that was lost is started again."""
        if self._newest is None:
            raise RuntimeError("the engine has no weights yet: call sync before generate")
        if self._rank_engine is None:
            error = self._load(self._newest).probe_error
            probe = self._newest.probe
            if probe is not None and not error <= probe.tolerance:
                raise EngineError(
                    f"started again, it does not compute what is trained: its logprobs differ from the "
                    f"trainer's by {error:.3g} nats, more than {probe.tolerance:g}"
                )
        return self._current()

    def _finished(self) -> Mapping[int, Rollout]:
        """What the engine that is lost has finished of its last call."""
        return {} if self._engine is None else dict(self._engine.finished)

    def _lose(self, error: Exception) -> None:
        """End what is left of an engine, so that another one is started. Raises EngineError when that has not
        helped."""
        engine, self._engine = self._engine, None
        rank_engine, self._rank_engine = self._rank_engine, None
        self._is_starting_again = True
        if engine is not None:
            engine.close()
        if rank_engine is not None:
            rank_engine.close()
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            raise EngineError(
                f"the engine of this rank was lost {self._num_failures} times without finishing a sample, "
                f"last because: {error}"
            ) from error
        logger.warning("the engine of this rank is lost and started again: %s", error)


def _placed(on_finished: OnFinished | None, places: Sequence[int]) -> OnFinished | None:
    """The callback with the indices that these requests have among all requests."""
    if on_finished is None:
        return None
    return lambda index, rollout: on_finished(places[index], rollout)
