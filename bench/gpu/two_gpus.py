"""Run NCCL between two GPUs: `python bench/gpu/two_gpus.py --help`."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

_DESCRIPTION = """\
Gives weights from the first GPU to an engine without vLLM on the second one by NCCL, as a trainer does, and
shows what one GPU cannot:

  1. the weights arrive, again and again, and how many GB/s the transfer makes (median of all but the first)
  2. an engine that is hung in a transfer is named within its deadline, and this process continues
  3. a new engine in its place gets the weights, in a group of its own

Ends with 0 when all three are so. It needs two GPUs.
"""


def main() -> int:
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4000, help="MB of the weights that travel (4000)")
    parser.add_argument("--rounds", type=int, default=6, help="how many transfers are measured (6)")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    if torch.cuda.device_count() < 2:
        print(f"bench/gpu/two_gpus.py needs two GPUs, and here are {torch.cuda.device_count()}")
        return 1
    from grpo_gpu.two_gpus import run

    return run(num_bytes=options.size * 1_000_000, num_rounds=options.rounds)


if __name__ == "__main__":
    sys.exit(main())
