"""Compare the places where a colocated engine can live: `python bench/executors.py --help`."""

import sys
from statistics import median

from grpo_bench.options import a_parser

_DESCRIPTION = """\
What it costs that a colocated engine has a process of its own, or is an actor of Ray: the same small job of
builtin://tiny in turn with its engine in the training process (Shared), in a process beside it
(engine.process Own) and on Ray (colocated.executor Ray), as `grpo-runtime run` trains it with real vLLM. Ends
with 1 when they did not sample the same tokens and train the same weights, to the last bit.

  python bench/executors.py                         3 rounds of 60 steps with two training processes
  python bench/executors.py --rounds 1 --steps 20   a minute
"""

if __name__ == "__main__":
    parser = a_parser(_DESCRIPTION)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="of each run (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="that train (%(default)s)")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if value <= 0:
            parser.error(f"--{name} {value}: it must be above 0")
    # slow imports, which --help does not need
    from grpo_bench.errors import BenchError
    from grpo_bench.executors import NUM_WARM, WAYS, Found, run
    from grpo_bench.machine import circumstances

    if options.steps <= NUM_WARM:
        parser.error(f"--steps {options.steps}: the first {NUM_WARM} are not counted")
    print(circumstances())
    found: list[Found] = []
    try:
        for number in range(options.rounds):
            for way in WAYS:
                one = run(way, steps=options.steps, processes=options.processes)
                found.append(one)
                print(
                    f"round {number + 1}  {way:8}{one.seconds:7.1f} s, a step {one.step_seconds:.3f} s, of "
                    f"it the sync {one.sync_seconds:.3f} s",
                    flush=True,
                )
    except BenchError as error:
        sys.exit(f"error: {error}")
    print("medians: the whole run, a step, its sync")
    for way in WAYS:
        own = [one for one in found if one.way == way]
        figures = (
            median(one.seconds for one in own),
            median(one.step_seconds for one in own),
            median(one.sync_seconds for one in own),
        )
        print(f"  {way:8}{figures[0]:7.1f} s {figures[1]:7.3f} s {figures[2]:7.3f} s")
    is_same = len({one.computed for one in found}) == 1
    print(f"tokens and weights: {'the same' if is_same else 'DIFFERENT'}")
    sys.exit(0 if is_same else 1)
