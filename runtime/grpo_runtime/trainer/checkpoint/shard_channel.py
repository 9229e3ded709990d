"""How rank 0 learns what the other ranks have written."""

import torch

from grpo_runtime.trainer.checkpoint.written_shard import WrittenShard
from grpo_runtime.trainer.distributed import Ranks


class ShardChannel:
    """Brings each rank's WrittenShard to rank 0, from the thread that wrote it to the one that commits, while
    the main threads train. All ranks make it at the same time.

    A rank that cannot write sends nothing: it ends with the cause, which rank 0 learns as PeerLostError.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._channel = ranks.open_channel()
        self._world_size = ranks.world_size

    def send(self, shard: WrittenShard) -> None:
        """The other ranks: tell rank 0."""
        data = torch.frombuffer(bytearray(shard.model_dump_json().encode()), dtype=torch.uint8)
        self._channel.send(torch.tensor(len(data)))
        self._channel.send(data)

    def receive(self) -> list[WrittenShard]:
        """Rank 0: wait for all others. Raises PeerLostError when one is gone."""
        return [self._receive_from(rank) for rank in range(1, self._world_size)]

    def _receive_from(self, rank: int) -> WrittenShard:
        size = self._channel.receive(torch.tensor(0), rank=rank)
        data = self._channel.receive(torch.empty(int(size), dtype=torch.uint8), rank=rank)
        return WrittenShard.model_validate_json(data.numpy().tobytes())
