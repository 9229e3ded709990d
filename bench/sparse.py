"""Measure what sending only what changed spares: `python bench/sparse.py --help`."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_bench.options import a_parser

_DESCRIPTION = """\
What `weightSync.sparse` spares, on one process and one thread: a random model is trained for some steps with
AdamW, and after each its weights are compared with those before, in bfloat16 and in float32. The bytes are
those that a group of engines is sent, with the index and the tag. Then seconds: whole syncs over Gloo to
receivers in processes of their own, of which as many weights change as the steps changed, over loopback as
it is (0) and held back to some Gbit/s for all receivers together, which takes root. Both ways in turn; the
ratio is what changed : all weights.

  python bench/sparse.py                            50 steps of 25 million parameters at 1e-6
  python bench/sparse.py --parameters 5 --learning-rate 1e-5
  python bench/sparse.py --wires 1,10,25 --sync-mb 500
"""


def _wires(text: str) -> list[float]:
    try:
        return [float(wire) for wire in text.split(",") if wire]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text}: write numbers of Gbit/s with commas between them"
        ) from None


def _print_seconds(wires: Sequence[float], *, num_bytes: int, share: float, num_receivers: int) -> None:
    command = [
        sys.executable,
        "-m",
        "grpo_sync.sparse_seconds",
        str(num_bytes),
        str(share),
        str(num_receivers),
    ]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    print(f"\n{num_bytes / 1e6:.0f} MB to {num_receivers} receivers, {share:.2%} of the weights changed")
    print(f"{'':14}{'all weights':>13}{'what changed':>14}{'ratio':>8}")
    for wire in wires:
        print(f"  {wire:g} Gbit/s" if wire else "  loopback", file=sys.stderr)
        found = json.loads(run_behind(wire, command, environment=environment))
        whole, sparse = (statistics.median(found[way]) for way in ("whole", "sparse"))
        name = f"{wire:g} Gbit/s" if wire else "loopback"
        print(f"{name:14}{whole:>11.2f} s{sparse:>12.2f} s{sparse / whole:>8.2f}")


if __name__ == "__main__":
    parser = a_parser(_DESCRIPTION)
    parser.add_argument("--parameters", type=float, default=25, metavar="M", help="millions (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="constant (%(default)s)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="in bfloat16 (%(default)s)")
    parser.add_argument(
        "--wires", type=_wires, default=[0, 1, 10], metavar="GBIT", help="speeds, 0 is loopback (0,1,10)"
    )
    parser.add_argument("--sync-mb", type=float, default=200, metavar="MB", help="of a sync (%(default)s)")
    parser.add_argument("--receivers", type=int, default=2, metavar="N", help="(%(default)s)")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if name != "wires" and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value:g}: it must be above 0")
    # slow imports, which --help does not need
    import torch

    from grpo_api.v1alpha1.spec import Dtype
    from grpo_bench.errors import BenchError
    from grpo_bench.machine import circumstances
    from grpo_runtime.trainer.distributed import Ranks, StopRequest
    from grpo_sync.slow_wire import require_slow_wire, run_behind
    from grpo_sync.sparse_share import SparseStep, measure_sparse

    if any(options.wires):
        try:
            require_slow_wire()
        except BenchError as error:
            parser.error(str(error))

    torch.set_num_threads(1)
    ranks = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())
    print(circumstances())

    def show_progress(step: SparseStep) -> None:
        print(f"  {step.share:.2%}", file=sys.stderr)

    changed_share = 0.0
    print(f"{'':10}{'all':>9}{'of all':>9}{'median':>9}{'least':>9}{'most':>9}{'compare':>9}{'apply':>9}")
    for dtype, num_steps in ((Dtype.BFLOAT16, options.steps), (Dtype.FLOAT32, min(3, options.steps))):
        steps = measure_sparse(
            int(options.parameters * 1e6),
            dtype=dtype,
            learning_rate=options.learning_rate,
            num_steps=num_steps,
            ranks=ranks,
            on_step=show_progress,
        )
        shares = [step.share for step in steps]
        if dtype is Dtype.BFLOAT16:
            changed_share = statistics.median(step.num_changed for step in steps) * 2 / steps[0].whole_bytes
        print(
            f"{dtype.value:10}{steps[0].whole_bytes / 1e6:>6.1f} MB{statistics.mean(shares):>9.2%}"
            f"{statistics.median(shares):>9.2%}"
            f"{min(shares):>9.2%}{max(shares):>9.2%}"
            f"{statistics.median(step.copy_seconds for step in steps):>7.2f} s"
            f"{statistics.median(step.apply_seconds for step in steps):>7.2f} s"
        )
    if options.wires:
        _print_seconds(
            options.wires,
            num_bytes=int(options.sync_mb * 1e6),
            share=changed_share,
            num_receivers=options.receivers,
        )
    sys.exit(0)
