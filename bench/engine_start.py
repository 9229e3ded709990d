"""Compare the start of our engine with vLLM's own: `python bench/engine_start.py --help`."""

import sys

from grpo_bench.command_line import parse_options, run

_DESCRIPTION = """\
How long it takes from the start of a process until its engine reports that it is live, and how much CPU time
all its processes use until then. Two servers are started in turn, each with empty caches, as a new pod's are:

  vllm serve             imports torch and vLLM in the server, in a process that inspects the model's class,
                         and in the engine core
  grpo-runtime rollout   what a rollout pod runs: the server inspects the class itself, and the core is a fork
                         of it. See docs/decisions/engines.md

Both have the same arguments, environment and model, which is tiny, so that only the start is measured. One
more start before the first pair brings files into memory and is not counted. On a GPU both start the core as
vLLM does.

  python bench/engine_start.py                              3 pairs, about two minutes
  python bench/engine_start.py --pairs 9 --json out.jsonl   more, and a line in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION, num_pairs=3)
    # a slow import, which --help does not need
    from grpo_bench.two_starts import two_ways

    sys.exit(run("engine_start", two_ways, options=options))
