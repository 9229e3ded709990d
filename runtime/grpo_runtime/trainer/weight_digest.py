"""One digest of the weights of all ranks: it says whether a replayed step ends with the weights of before.

Each rank tags the part of the weights that it holds, where it is. No weight is copied or gathered, and only
16 bytes of a rank travel.
"""

import hashlib

import torch

from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.weight_sync.held_tag import HELD_TAG_BYTES, held_tag


def weight_digest(strategy: Strategy, *, ranks: Ranks) -> str:
    """The digest of the weights that all ranks hold together, as 32 hexadecimal digits; every rank calls this
    at the same time.

    Weights that are spread over the ranks in another way have another digest.
    """
    ranks.position.at("digests the weights")
    tags = torch.zeros((ranks.world_size, HELD_TAG_BYTES), dtype=torch.uint8)
    shards = list(strategy.weight_shards())
    # master weights may be in CPU memory although the strategy computes on a GPU
    own = held_tag(shards, is_on_gpu=all(shard.is_cuda for shard in shards))
    tags[ranks.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    # the others add zeros
    return hashlib.sha256(ranks.sum(tags).numpy().tobytes()).hexdigest()[:32]
