"""Measure a weight sync against its floors: `python bench/sync.py --help`."""

import os
import sys

from grpo_sync.options import parse_options

_DESCRIPTION = """\
How long a weight sync takes, phase by phase, beside what no sync can be faster than on this machine.

Without vLLM, every backend that reaches another process gives synthetic weights (a transformer's tensors,
float32 in the trainer, sent in float32 or bfloat16) to receivers; above 500 MB bfloat16 goes to the fewest of
them only. Each receiver is a process of its own that does what a worker of vLLM does. A sync goes through

  prepare    make of the weights what is sent; in most backends a copy, with a digest
  init       connect; only in the first sync, which also warms up and is shown apart (first)
  start      open an update
  transfer   the bytes travel, and the receivers check them
  finish     hand them over. The copy into the model (load) is shown apart: it is not part of the transfer

and total is their sum: from prepare until the last receiver has finished, without load. Right before each
sync the floors are measured with the same bytes, in memory that is warm, and ratio is total : floor:

  copy        from memory to memory, by one thread; the floor of shared memory with one receiver
  broadcast   torch's gloo alone, in buffers of 64 MiB one after the other, to as many receivers: no packing,
              no digest, no verbs. The floor of every other case

For comparison, naive sends a message and a broadcast for each parameter, and checks nothing (float32, up to
100 MB).

With vLLM, a fleet syncs real engines as a trainer does, up to 100 MB. Orchestration is all that is neither
packing nor transfer nor loading: its median and 95th percentile over 20 syncs are shown.

The goals (ratio 1.15 to one receiver and 1.3 to several, orchestration .05 and .15 s) are those for 1 GB
without vLLM, and for 1 and 100 MB with it. Compare ratios, and not seconds, with those of another machine or
another day. One thread each; 4 receivers of 1 GB need 14 GB of memory.

  python bench/sync.py                    everything, some seven minutes
  python bench/sync.py --json out.jsonl   and every figure as a line in a file
  python bench/sync.py --sizes 1,100 --receivers 1,2 --engines 0   without vLLM, less than a minute
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION)
    # read when torch is imported, here and in every process started
    os.environ["OMP_NUM_THREADS"] = "1"
    # slow imports, which --help does not need
    from grpo_sync.run import run

    sys.exit(run(options))
