"""Measure what sending only what changed spares: `python bench/sparse.py --help`."""

import statistics
import sys

from grpo_bench.options import a_parser

_DESCRIPTION = """\
What `weightSync.sparse` spares, on one process and one thread: a random model is trained for some steps with
AdamW, and after each its weights are compared with those before, in bfloat16 and in float32. The bytes are
those that a group of engines is sent, with the index and the tag.

  python bench/sparse.py                            50 steps of 25 million parameters at 1e-6
  python bench/sparse.py --parameters 5 --learning-rate 1e-5
"""

if __name__ == "__main__":
    parser = a_parser(_DESCRIPTION)
    parser.add_argument("--parameters", type=float, default=25, metavar="M", help="millions (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="constant (%(default)s)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="in bfloat16 (%(default)s)")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value:g}: it must be above 0")
    # slow imports, which --help does not need
    import torch

    from grpo_api.v1alpha1.spec import Dtype
    from grpo_bench.machine import circumstances
    from grpo_runtime.trainer.distributed import Ranks
    from grpo_runtime.trainer.stop import StopRequest
    from grpo_sync.sparse_share import SparseStep, measure_sparse

    torch.set_num_threads(1)
    ranks = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())
    print(circumstances())

    def show_progress(step: SparseStep) -> None:
        print(f"  {step.share:.2%}", file=sys.stderr)

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
        print(
            f"{dtype.value:10}{steps[0].whole_bytes / 1e6:>6.1f} MB{statistics.mean(shares):>9.2%}"
            f"{statistics.median(shares):>9.2%}"
            f"{min(shares):>9.2%}{max(shares):>9.2%}"
            f"{statistics.median(step.copy_seconds for step in steps):>7.2f} s"
            f"{statistics.median(step.apply_seconds for step in steps):>7.2f} s"
        )
    sys.exit(0)
