"""One of the two ranks of test_metrics_across_ranks, which RANK names: it reduces its part of the metrics and
prints the values. `metrics_ranks.py STORE`."""

import json
import os
import sys

import torch
import torch.distributed

from grpo_runtime.algorithm.metrics import max_of, mean_of, metric_values, min_of, reduce_metrics

PARTS = [torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 0.5, 0.0], [-4.0, 0.0, 0.0]])]
MASKS = [torch.tensor([[True, True, True]]), torch.tensor([[True, True, False], [False, False, False]])]


def main(rank: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    part, mask = PARTS[rank], MASKS[rank]
    metrics = {
        "mean": mean_of(part, mask=mask),
        "mean_of_squares": mean_of(part**2, mask=mask),
        "least": min_of(part[mask]),
        "greatest": max_of(part[mask]),
    }
    if rank:
        metrics = dict(reversed(metrics.items())) | {"mean": metrics["mean"]}
    print(json.dumps(metric_values(reduce_metrics(metrics))), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ["RANK"]), sys.argv[1])
