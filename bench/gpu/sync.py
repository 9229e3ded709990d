"""Measure packing, the tag and IPC on one GPU: `python bench/gpu/sync.py --help`."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

_DESCRIPTION = """\
How fast weights are packed, tagged and given to another process on one NVIDIA GPU, beside what the GPU does
without us. Every line is GB/s of the weights that travel (bfloat16, float32 in the trainer), the median of
all rounds but the first.

  copy         one copy from GPU memory to GPU memory: what IPC cannot be faster than
  host copy    one copy from GPU memory to host memory that is locked for the GPU
  cast         the cast of all tensors to the dtype that travels, one kernel each
  tag          the tag of weights that are packed (hash of rows on the GPU, then Poly1305)
  pack         cast, pack, tag, and copy to the host: what training waits for
  ipc          a transfer to another process: from the verb update until it has all and has checked the tag,
               while the weights are being packed

It needs a GPU with twelve times the weights free, and three times in host memory. Nothing else may use it.
"""


def main() -> int:
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4000, help="MB of the weights that travel (4000)")
    parser.add_argument("--rounds", type=int, default=6, help="how often each is measured (6)")
    parser.add_argument("--json", type=Path, help="append every figure to this file, as a line")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    # slow imports, which --help does not need
    import torch

    if not torch.cuda.is_available():
        print("bench/gpu/sync.py needs an NVIDIA GPU, and there is none here")
        return 1
    from grpo_gpu.one_gpu import measure

    return measure(num_bytes=options.size * 1_000_000, num_rounds=options.rounds, json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
