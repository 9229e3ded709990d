"""How a run is saved: `Saver` on rank 0, which also exports the trained model, `ShardSaver` on the others."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.source import LocalModel
from grpo_runtime.process.background import in_thread
from grpo_runtime.storage.volume_errors import volume_errors_named
from grpo_runtime.trainer.checkpoint.contents import RunState, complete_checkpoint
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.model_export import (
    MERGED_FOLDER,
    MODEL_FOLDER,
    export_merged,
    export_model,
    merged_model,
    whole_model,
)
from grpo_runtime.trainer.checkpoint.shard import CheckpointCopy, HostCopier, ShardChannel, write_shard
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.reference import Reference
from grpo_runtime.trainer.strategy.interface import Strategy

logger = logging.getLogger(__name__)
WAITED = "checkpoint/waited_seconds"
"""Metric: how long training was blocked by a save."""
SECONDS = "checkpoint/seconds"
"""Metric: how long a save took, from its copies to its commit."""


@dataclass(frozen=True)
class _SaveInFlight:
    """A checkpoint that is copied and is being written."""

    step: int
    seconds: "Future[float]"
    """Time from the first copy to the commit."""


class Saver:
    """Saves the policy, its optimizer and where the run stands: training waits for copies in CPU memory,
    which a thread then writes, hashes and commits. One save at most is in flight.

    `newest_step` is the step of the newest checkpoint that is committed, as far as `poll` has learned, and
    `newest_seconds` how long its save took.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        model: PreTrainedModel,
        strategy: Strategy,
        tokenizer: PreTrainedTokenizerBase,
        ranks: Ranks,
        output_dir: Path,
        newest_step: int | None,
        origin: LocalModel,
        is_shared: bool,
        exports_merged: bool = False,
        reference: Reference | None = None,
    ) -> None:
        """`newest_step` is the step of the newest checkpoint that is there already, `origin` the model that
        the policy started from. With `is_shared` every rank writes its shard. With `exports_merged`
        an adapter is also exported within the whole model. All ranks make their savers at the same time."""
        self.newest_step = newest_step
        self.newest_seconds: float | None = None
        self.num_bytes_written = 0
        """By this rank, in all its saves and the export."""
        self._store = store
        self._model = model
        self._strategy = strategy
        self._tokenizer = tokenizer
        self._output_dir = output_dir
        self._origin = origin
        self._num_writers = ranks.world_size if is_shared else 1
        self._copier = HostCopier(
            model, strategy, rank=ranks.rank, num_writers=self._num_writers, reference=reference
        )
        self._channel = ShardChannel(ranks) if is_shared else None
        self._in_flight: _SaveInFlight | None = None
        self._waited_seconds = 0.0
        self._metrics: dict[str, float] = {}
        self._exports_merged = exports_merged

    def is_new(self, state: RunState) -> bool:
        """Whether there is something to save: something was learned, and this step is not saved yet, nor is
        its save in flight."""
        return state.step not in (0, self.newest_step, self._in_flight and self._in_flight.step)

    @property
    def is_saving(self) -> bool:
        """Whether a save is in flight of which `poll` has not learned the end."""
        return self._in_flight is not None

    def save(self, state: RunState) -> None:
        """Copy weights and optimizer as they are now, and begin to write them. No save is in flight."""
        assert self._in_flight is None, "the save before must be waited for"
        started = time.monotonic()
        copy = self._copier.copy()
        self._metrics[WAITED] = self._waited_seconds + time.monotonic() - started
        self._waited_seconds = 0.0
        self._in_flight = _SaveInFlight(
            state.step,
            in_thread(lambda: self._commit(copy, state, started=started), name=f"checkpoint-{state.step}"),
        )

    def poll(self) -> bool:
        """Learn how the save in flight has ended: True when its checkpoint is committed. Raises what it
        raised."""
        if self._in_flight is None or not self._in_flight.seconds.done():
            return False
        ended, self._in_flight = self._in_flight, None
        self.newest_seconds = self._metrics[SECONDS] = ended.seconds.result()
        self.newest_step = ended.step
        return True

    async def wait(self) -> None:
        """Wait until the save in flight has ended; `poll` reports how. Training is blocked meanwhile."""
        if self._in_flight is None:
            return
        started = time.monotonic()
        logger.info("waiting for the checkpoint of step %d", self._in_flight.step)
        # the error is for `poll`
        await asyncio.gather(asyncio.wrap_future(self._in_flight.seconds), return_exceptions=True)
        self._waited_seconds += time.monotonic() - started

    def finish(self, *, timeout_seconds: float) -> None:
        """Let the save in flight end, for so long, in a run that ends for another reason."""
        if self._in_flight is not None:
            wait([self._in_flight.seconds], timeout=timeout_seconds)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the saves since the call before."""
        found, self._metrics = self._metrics, {}
        return found

    def export(self) -> "Future[None]":
        """Put the policy together as it is now, and begin to write it to OUTPUT/model, and to OUTPUT/merged
        where an adapter is to be merged; a thread writes. No save is in flight."""
        weights = whole_model(self._strategy)
        merged = merged_model(self._strategy) if self._exports_merged else None
        return in_thread(lambda: self._write_model(weights, merged), name="export")

    def _write_model(
        self, weights: Mapping[str, torch.Tensor], merged: Mapping[str, torch.Tensor] | None
    ) -> None:
        exports = [(export_model, MODEL_FOLDER, weights)]
        if merged is not None:
            exports.append((export_merged, MERGED_FOLDER, merged))
        with volume_errors_named(self._output_dir):
            for export, folder, tensors in exports:
                export(
                    self._output_dir / folder,
                    model=self._model,
                    weights=tensors,
                    tokenizer=self._tokenizer,
                    origin=self._origin,
                    on_bytes=self._count_written,
                )

    def _count_written(self, num_bytes: int) -> None:
        self.num_bytes_written += num_bytes

    def _commit(self, copy: CheckpointCopy, state: RunState, *, started: float) -> float:
        """Write, hash and commit the copy, in a thread. Returns the seconds since `started`."""

        def write(folder: Path) -> dict[str, FileEntry]:
            own = write_shard(
                folder,
                copy,
                model=self._model,
                rank=0,
                num_writers=self._num_writers,
                on_bytes=self._count_written,
            )
            others = self._channel.receive() if self._channel else []
            return complete_checkpoint(
                folder, model=self._model, tokenizer=self._tokenizer, state=state, shards=[own, *others]
            )

        copied_seconds = time.monotonic() - started
        with volume_errors_named(self._output_dir):
            path = self._store.save(state.step, write)
        seconds = time.monotonic() - started
        logger.info("saved %s in %.1f s, of which training waited %.1f s", path, seconds, copied_seconds)
        return seconds


class ShardSaver:
    """Joins the gather of tensors that are sharded, and with `is_shared` writes this rank's shard of all."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        model: PreTrainedModel,
        strategy: Strategy,
        ranks: Ranks,
        output_dir: Path,
        is_shared: bool,
        reference: Reference | None = None,
    ) -> None:
        """All ranks make their savers at the same time."""
        self._store = store
        self._model = model
        self._ranks = ranks
        self._output_dir = output_dir
        self._num_writers = ranks.world_size if is_shared else 1
        self._copier = HostCopier(
            model, strategy, rank=ranks.rank, num_writers=self._num_writers, reference=reference
        )
        self._channel = ShardChannel(ranks) if is_shared else None
        self._in_flight: Future[None] | None = None

    def save(self, step: int) -> None:
        """Copy this rank's shard, and begin to write it. Rank 0 has committed the checkpoint before."""
        if self._in_flight is not None:
            self._in_flight.result()
        copy, channel = self._copier.copy(), self._channel
        if channel is not None:
            self._in_flight = in_thread(
                lambda: self._write(copy, step=step, channel=channel), name=f"checkpoint-{step}"
            )

    def check(self) -> None:
        """Raise what kept this rank from writing its shard."""
        if self._in_flight is not None and self._in_flight.done():
            self._in_flight.result()

    def finish(self, *, timeout_seconds: float) -> None:
        """Let the shard in flight be written, for so long, on a rank that ends for another reason."""
        if self._in_flight is not None:
            wait([self._in_flight], timeout=timeout_seconds)

    def _write(self, copy: CheckpointCopy, *, step: int, channel: ShardChannel) -> None:
        with volume_errors_named(self._output_dir):
            shard = write_shard(
                self._store.unfinished(step),
                copy,
                model=self._model,
                rank=self._ranks.rank,
                num_writers=self._num_writers,
            )
        channel.send(shard)
