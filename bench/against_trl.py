"""Compare a training step with TRL's: `python bench/against_trl.py --help`."""

import sys

from grpo_trl.options import parse_options

_DESCRIPTION = """\
How long a step of GRPO takes with TRL 1.16's GRPOTrainer and with ours, on this machine without a GPU.

Both train the same random model in float32 on the same prompts: as many completions of each, as long (the
model cannot say its end-of-sequence token), temperature 1, the same reward function, loss dapo without a KL
term, AdamW. Each has all cores, one after the other, in turns:

  TRL    GRPOTrainer, which generates with transformers, in one process with a thread for each core. Without
         gradient checkpointing, which it would do by default and which costs it time
  ours   `grpo-runtime run` with a job in mode Colocated, with defaults, and with trainer.processesPerNode

  27M    a model of 27 M parameters, 32 completions of 128 tokens
  tiny   a model of 0.1 M parameters, 128 completions of 4 tokens: what a step costs beside the model

A step is the time from one logged step to the next, without the first of each run. The script ends with an
error unless both report the completions and tokens that were asked for, in every step. TRL is installed into
an environment of its own in this project's cache, once.

ratio is TRL : ours, of the medians of two runs right after each other; above 1 ours is faster. It is the
median over pairs, with the lowest and the highest. Compare ratios, and not seconds, with those of another
machine or another day. TRL's rest holds its forward and backward passes, which it does not tell apart.

  python bench/against_trl.py                          2 pairs of both, less than ten minutes
  python bench/against_trl.py --pairs 1 --cases tiny   a minute
  python bench/against_trl.py --json out.jsonl         and every step as a line in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION)
    # slow imports, which --help does not need
    from grpo_trl.run import run

    sys.exit(run(options))
