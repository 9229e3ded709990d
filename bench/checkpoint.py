"""Compare a save that training waits for with one in a thread: `python bench/checkpoint.py --help`."""

import sys
from functools import partial

from grpo_checkpoint.options import parse_options

_DESCRIPTION = """\
How long training waits for a checkpoint of a random model and its AdamW on this machine, one way after the
other, and how long the save takes until it is committed.

  synchronous   training waits until everything is copied, written by the safetensors library, synced to disk,
                read again to be hashed, and renamed: what the trainer did before it had a thread for it
  in a thread   the trainer's: training waits for copies in CPU memory; a thread hashes while it writes

  tiny   0.1 M parameters, only where it is named, to try the flow
  27M    26.6 M parameters, a checkpoint of 319 MB
  110M   109.5 M parameters, a checkpoint of 1.3 GB

With --device cuda the model is on a GPU, and what training waits for are copies from there. Each way has
saved once before, so its memory is there. Nothing trains beside the thread. The script ends with
an error unless both ways write the same tensors. Checkpoints are written below --folder, and removed.

The ratio is synchronous : in a thread; above 1 the thread takes less. It is the median over pairs of saves,
with the lowest and the highest pair. Compare ratios, and not seconds, with those of another machine or disk.

  python bench/checkpoint.py                          3 pairs of both
  python bench/checkpoint.py --device cuda
  python bench/checkpoint.py --folder /mnt/claim      on that volume
  python bench/checkpoint.py --json out.jsonl         and each result as a line in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION)
    # slow imports, which --help does not need
    import torch

    from grpo_bench.command_line import Options, run
    from grpo_checkpoint.cases import CASES
    from grpo_checkpoint.saves import alone, synchronous_and_in_a_thread

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: there is no NVIDIA GPU that torch can use")
    ranks = alone(options.device)
    codes = [
        run(
            f"checkpoint {name} on {options.device}",
            partial(
                synchronous_and_in_a_thread,
                CASES[name],
                folder=options.folder,
                device=options.device,
                ranks=ranks,
            ),
            options=Options(num_pairs=options.num_pairs, json=options.json),
        )
        for name in options.cases
    ]
    sys.exit(max(codes))
