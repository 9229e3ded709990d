"""Compare asynchronous training with synchronous training: `python bench/asynchronous.py --help`."""

import os
import sys

from grpo_async.options import parse_options

_DESCRIPTION = """\
How much faster training is with `async` than without, on the same prompts and seeds, and what its modes make
of that.

  a   a rollout function whose tool takes .2 to 5 s (a bounded Pareto distribution, by the seed of each
      completion), on a real engine. What a step costs beside its tools is measured
  b   completions of 16 to 1024 tokens (likewise) on scripted engines, which take a millisecond for a token,
      behind the product's dispatch and in its training loop. A training step takes .15 s, a sync .02 s.
      With order Planned and stale Drop, too
  c   the copy job on a real engine, whose completions are short and even: where trainer and engine keep the
      cores busy that they share, async can only tie or lose
  d   the answers of the copy job again and again, 8 to 128 tokens (likewise), on a real engine, so that
      weights change within many completions. At maxStaleness 1 and 4: the defaults, kvCache Keep, and
      pauseMode Wait and Abort
  e   the same with the answers of the reverse job, at a learning rate at which the policy moves fast

The ways run in turn. Their speed is that of steps 6 to the last of the synchronous run. The ratio is the
median over pairs of runs, which have other seeds: to the synchronous run, and for a mode to the run of the
same maxStaleness with the defaults. The columns, of which a case has those that it has something in:

  of simulation   the speed, as a share of that of a simulation of the same draws in which only the tools or
                  tokens, training and weight syncs take time; in (a) these two as long as in the run
  staleness       the mean age of groups when they are trained, in steps
  dropped         prompts a step that were cancelled, with stale Drop
  across          of the tokens that are trained, the share of completions within which weights changed
  KL k3, median   sampling/mismatch_kl/k3, nats a token, the mean and the median of the steps of the speed
  drained         sync/drain_seconds: with pauseMode Wait, how long an engine finishes what it samples
  paused          sync/paused_seconds: how long an engine samples nothing in a weight sync, the mean
  N steps         until the last step of the synchronous run, from the beginning of the first
  reward          the mean of the steps of the speed: who learns sooner has more
  reward then     in the last steps before the run that the ratio is to has ended; faster runs have more steps
  generate, sync, train   what the trainer does in a step, means

Ends with 1 when a goal is missed: in (a) 1.8 and 2.5 times as fast, in (a) and (b) .9 of the
simulation of asynchronous runs with the defaults.

  python bench/asynchronous.py                     all cases, half an hour
  python bench/asynchronous.py --cases b --pairs 1   two minutes
  python bench/asynchronous.py --cases d,e --pairs 1   the modes once, some ten minutes
  python bench/asynchronous.py --json out.jsonl    and every step in a file
"""

if __name__ == "__main__":
    options = parse_options(_DESCRIPTION)
    # read when torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # slow imports, which --help does not need
    from grpo_async.run import run

    sys.exit(run(options))
