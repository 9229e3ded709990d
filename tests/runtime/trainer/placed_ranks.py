"""One of two ranks, which RANK names, on which modules are placed: `placed_ranks.py PORT`. Rank 1 begins
without values, first of the same module and then of one that is tied where rank 0's is not. Prints what it
has seen."""

import os
import sys

import torch
from torch import nn

from grpo_runtime.errors import UserError
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.strategy.placement import place


def model(*, is_tied: bool) -> nn.Sequential:
    embedding, head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    if is_tied:
        head.weight = embedding.weight
    return nn.Sequential(embedding, head)


def train(rank: int, port: int) -> None:
    ranks = Ranks.meet(
        rank=rank, world_size=2, address="127.0.0.1", port=port, backend="gloo", stop=StopRequest()
    )
    torch.manual_seed(rank)
    device = torch.device("cpu")
    with torch.device("cpu" if rank == 0 else "meta"):
        same, other = model(is_tied=True), model(is_tied=rank == 1)
    place(same, device=device, ranks=ranks)
    is_tied = same[1].weight is same[0].weight
    first = same[0].weight.detach().clone()
    try:
        place(other, device=device, ranks=ranks)
    except UserError as error:
        refusal = str(error)
    equal = first.equal(ranks.broadcast(first.clone()))
    print(f"rank {rank}: tied {is_tied}, equal {equal}, {refusal}", flush=True)
    ranks.leave()


if __name__ == "__main__":
    train(int(os.environ["RANK"]), int(sys.argv[1]))
