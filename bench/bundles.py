"""Compare a call for each sample with bundles of samples: `python bench/bundles.py --help`."""

import sys

from grpo_bench.command_line import parse_options, run

_DESCRIPTION = """\
How much it saves to ask an engine for several samples of a prompt in one call.

Two vLLM engines on this machine, as pods would run them, sample steps of examples/copy-disaggregated.yaml:
16 prompts, 8 samples of each, 4 tokens long. The trainer's own fleet asks for them in two ways, in turn:

  a call for each sample   128 calls in a step
  bundles                  up to 16 samples of a prompt in one call, as in training: 16 calls in a step

Both use the same seeds, and the script ends with an error unless both draw the same tokens. The completions
have only 4 tokens, so that the cost of the calls shows.

  python bench/bundles.py                              15 pairs, about a minute
  python bench/bundles.py --pairs 5 --json out.jsonl   fewer, and a line in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION, num_pairs=15)
    # a slow import, which --help does not need
    from grpo_bench.two_samplings import two_ways

    sys.exit(run("bundles", two_ways, options=options))
