"""Compare what a turn takes beside its sampling, by kind of environment: `python bench/turns.py --help`."""

import sys

from grpo_bench.options import a_parser

_DESCRIPTION = """\
What each kind of environment costs: a coroutine, tools by a class, by functions and by MCP servers, and a
program. All play the same chat with a calculator, in turn, behind engines that answer at once. The gateway,
the worker and its processes are those of a job; what they take of a turn is its seconds, as the sampling
takes none. A turn is the difference between episodes of 22 turns and of 2, by their number.

  python bench/turns.py                                5 rounds, two minutes
  python bench/turns.py --rounds 2 --episodes 3 --at-once 32
"""

if __name__ == "__main__":
    parser = a_parser(_DESCRIPTION)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often (%(default)s)")
    parser.add_argument(
        "--episodes", type=int, default=3, metavar="N", help="one by one, in a round (%(default)s)"
    )
    parser.add_argument(
        "--at-once", type=int, default=16, metavar="N", help="episodes at a time, at the end (%(default)s)"
    )
    options = parser.parse_args()
    for name, value in vars(options).items():
        if value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value}: it must be above 0")
    # slow imports, which --help does not need
    import asyncio

    from grpo_bench.errors import BenchError
    from grpo_bench.machine import circumstances
    from grpo_turns.figures import table
    from grpo_turns.measure import measure

    print(circumstances(), flush=True)
    try:
        found = asyncio.run(
            measure(num_rounds=options.rounds, num_episodes=options.episodes, at_once=options.at_once)
        )
    except BenchError as error:
        sys.exit(f"error: {error}")
    print(table(found, at_once=options.at_once))
    sys.exit(0)
