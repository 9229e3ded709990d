"""Measure training steps on one GPU: `python bench/gpu/learner.py --help`."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

_DESCRIPTION = """\
How fast the trainer learns from a batch that is there, without an engine, on one NVIDIA GPU: the forward and
backward passes of all micro-batches, and the optimizer step. The model is random, of a shape that people
train. Each way is measured after the other, with the same batch:

  DDP                   as a job with one GPU: bfloat16, activations computed again
  DDP, kept             with trainer.gradientCheckpointing false
  FSDP2                 with trainer.strategy FSDP2, here on one rank

For each: seconds of a step (median of all but the first), tokens per second, the share of the GPU's peak that
the model's own operations are (6 for each parameter and token, and those of attention; what is computed again
does not count), the peak of its memory, and what `grpo-runtime validate` plans for it. The share is left out
for a GPU whose peak is not known here. With --device cpu the same code runs in float32 on the CPU, where
every tensor is counted, which takes time.

It needs a GPU with some 20 bytes for each parameter free. Nothing else may use it.
"""


def main() -> int:
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="0.5B", help="the model: tiny, 0.5B or 1.5B (0.5B)")
    parser.add_argument("--sequences", type=int, default=64, help="sequences of a step (64)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the longest of them (1024)")
    parser.add_argument("--budget", type=int, default=16384, help="trainer.microBatchTokens (16384)")
    parser.add_argument("--rounds", type=int, default=4, help="steps of each way (4)")
    parser.add_argument("--way", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="append every figure to this file, as a line")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from grpo_gpu.shapes import SHAPES

    if options.size not in SHAPES:
        parser.error(f"--size ({options.size}) must be one of {', '.join(SHAPES)}")
    # slow imports, which --help does not need
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "bench/gpu/learner.py needs an NVIDIA GPU, and there is none here: --device cpu runs it without"
        )
        return 1
    from grpo_gpu.learner import WAYS, Load, measure
    from grpo_runtime.trainer.device import training_device

    load = Load(SHAPES[options.size], options.sequences, options.tokens, options.budget, options.rounds)
    device = training_device(local_rank=0) if options.device == "cuda" else torch.device("cpu")
    ways = [way for way in WAYS if way.name in (options.way or [way.name])]
    if len(ways) != len(options.way or WAYS):
        parser.error(f"--way {options.way}: there are {[way.name for way in WAYS]}, each once")
    return measure(load, ways, size=options.size, device=device, json_file=options.json)


if __name__ == "__main__":
    sys.exit(main())
