"""Train small jobs and hold them to the rewards they must reach: `python bench/learning.py --help`."""

import sys
import time

from grpo_bench.options import a_parser, add_json, named_cases, require_folder

_DESCRIPTION = """\
Whether the product learns. Each case is a job of builtin://tiny, trained as `grpo-runtime run` does with a
real vLLM engine on this machine's CPU, and has a gate: the reward that it must reach, or, for a control, must
not. A control trains on a reward from which nothing about the task can be learned. The rewards are means over
the first and the last steps of a run. Cases with `async` are compared with the synchronous one, which is
trained too, and their completions must be of the age that is asked for. `uncorrected` ones train without
importance correction, which no job can have with `async`. Ends with 1 when a gate is missed.

  python bench/learning.py                            all cases, about an hour
  python bench/learning.py --cases reverse,add        some of them
  python bench/learning.py --json learning.jsonl      a line for each case in a file
"""


def main() -> int:
    """Run the cases that the command line names."""
    # a slow import, which --help needs for the names of the cases only
    from grpo_learning.cases import CASES

    names = [case.name for case in CASES]
    parser = a_parser(_DESCRIPTION + f"\nThe cases: {', '.join(names)}\n")
    parser.add_argument("--cases", default=",".join(names), metavar="A,B", help="which cases (all)")
    add_json(parser, what="a line of JSON for each case")
    options = parser.parse_args()
    require_folder(parser, options.json)
    chosen = named_cases(parser, options.cases, cases=names)

    from grpo_bench.errors import BenchError
    from grpo_learning.gates import Outcome
    from grpo_learning.report import header, json_line, row
    from grpo_learning.runs import train

    print(header(), flush=True)
    num_missed = 0
    outcomes_of: dict[str, list[Outcome]] = {}
    needed = {*chosen, *(case.beside for case in CASES if case.name in chosen)}
    for case in (case for case in CASES if case.name in needed):
        began = time.monotonic()
        try:
            outcomes = outcomes_of[case.name] = [train(case, seed=seed) for seed in case.seeds]
        except BenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        seconds = time.monotonic() - began
        misses = case.gate.misses(outcomes, beside=outcomes_of[case.beside] if case.beside else ())
        num_missed += bool(misses)
        print(row(case, outcomes, seconds=seconds, misses=misses), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json_line(case, outcomes, seconds=seconds, misses=misses) + "\n")
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
