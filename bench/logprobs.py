"""Compare chunked logprobs with dense ones: `python bench/logprobs.py --help`."""

import sys
from functools import partial

from grpo_logprobs.options import parse_options

_DESCRIPTION = """\
What the trainer's logprobs cost, computed from chunks of logits, beside the plain way with the logits of all
tokens: one forward and backward pass of a micro-batch by the same random model, one way after the other.

  dense     the model's own logits [B, T, V], and autograd through their softmax
  chunked   the trainer's: completions only, at most 2^25 logits at a time, again in the backward pass

  tiny      0.1 M parameters, a vocabulary of 128, 1024 tokens of which half are completions
  27M       26.6 M parameters, a vocabulary of 32,000, 2048 tokens of which seven of eight are completions
  152k      two layers of Qwen2.5-0.5B with its vocabulary, 8192 tokens, seven of eight of them completions:
            some 30 GiB, so only where it is named

In float32 on the CPU and in bfloat16 on a GPU (--device cuda). peak MiB is what the passes hold beside the
weights: the bytes of all living tensors on the CPU, the allocator's peak on a GPU. The script ends with an
error unless both ways give the same logprobs.

The ratio is dense : chunked; above 1 chunked takes less. It is the median over pairs of runs, with the lowest
and the highest pair. Compare ratios, and not seconds, with those of another machine or another day.

  python bench/logprobs.py                          3 pairs of both
  python bench/logprobs.py --device cuda
  python bench/logprobs.py --json out.jsonl         and each result as a line in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION)
    # slow imports, which --help does not need
    from grpo_bench.command_line import Options, run
    from grpo_logprobs.cases import CASES
    from grpo_logprobs.passes import dense_and_chunked

    codes = [
        run(
            f"logprobs {name} on {options.device}",
            partial(dense_and_chunked, CASES[name], device=options.device),
            options=Options(num_pairs=options.num_pairs, json=options.json),
        )
        for name in options.cases
    ]
    sys.exit(max(codes))
