"""One process for each GPU of a node, which adds up its number with the others by NCCL.

python -m grpo_runtime.local.nccl_sum RANK NUM_RANKS PORT ends with 0 when the sum is right.
"""

import sys

import torch

from grpo_runtime.local.ports import LOOPBACK
from grpo_runtime.trainer.distributed import Ranks, StopRequest


def main(rank: int, num_ranks: int, port: int) -> int:
    """Returns the exit code."""
    torch.cuda.set_device(rank)
    ranks = Ranks.meet(
        rank=rank, world_size=num_ranks, address=LOOPBACK, port=port, backend="nccl", stop=StopRequest()
    )
    found = int(ranks.sum(torch.tensor([rank + 1]).cuda()).cpu().item())
    expected = num_ranks * (num_ranks + 1) // 2
    if found != expected:
        print(f"the sum of {num_ranks} ranks is {found} instead of {expected}")
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
