"""Ten minutes on one GPU: `python bench/gpu/day.py --help`."""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

_DESCRIPTION = """\
All that one NVIDIA GPU can show without vLLM, within ten minutes, in order of worth: the tests that need a
GPU, training steps, logprobs, packing and IPC, memory beside its plan, checkpoints. It calls the scripts that
there are for each. Each part has its own time; one that fails or takes longer does not end the others.

The file --json is written anew after each part: commit, device, driver and versions, the outcome of each
part, all that the scripts found, and the rows of a table, each with the versions of torch that it holds for.
With --into nothing is measured: the table is made of that file, and takes the place of the one in the page.

It needs torch, transformers and pytest, what .gpu-site has (make gpu-day), and nothing else on the GPU.
"""


def main() -> int:
    parser = ArgumentParser(description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu-day.json"), help="the report (%(default)s)")
    parser.add_argument("--commit", help="that of the tree, where it has no history")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it on a null GPU")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="bring the report into this page")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from grpo_bench.errors import BenchError
    from grpo_bench.options import require_folder
    from grpo_gpu.day import SMALL, WHOLE, run_day
    from grpo_gpu.day_table import with_table

    if options.into:
        page = options.into.read_text()
        options.into.write_text(with_table(page, json.loads(options.json.read_text())))
        return 0
    require_folder(parser, options.json)
    try:
        return run_day(SMALL if options.small else WHOLE, commit=options.commit, json_file=options.json)
    except BenchError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
