"""The part in a save that a rank other than 0 has."""

from concurrent.futures import Future, wait
from pathlib import Path

from transformers import PreTrainedModel

from grpo_runtime.process.background import in_thread
from grpo_runtime.storage.volume_errors import volume_errors_named
from grpo_runtime.trainer.checkpoint.host_copy import CheckpointCopy, HostCopier
from grpo_runtime.trainer.checkpoint.shard_channel import ShardChannel
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.checkpoint.written_shard import write_shard
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.reference import Reference
from grpo_runtime.trainer.strategy.interface import Strategy


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
