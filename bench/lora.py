"""Compare training an adapter with training whole weights: `python bench/lora.py --help`."""

import sys

from grpo_bench.options import a_parser

_DESCRIPTION = """\
What `model.lora` spares, on one process and one thread: a random model in float32 is trained for some steps,
once whole and once with an adapter. After each step all weights are read as for a sync, with the adapter
summed into them, and a checkpoint is written.

  python bench/lora.py                              25 million parameters, rank 16
  python bench/lora.py --parameters 100 --rank 64
"""

if __name__ == "__main__":
    parser = a_parser(_DESCRIPTION)
    parser.add_argument("--parameters", type=float, default=25, metavar="M", help="millions (%(default)s)")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter (%(default)s)")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="how often (%(default)s)")
    options = parser.parse_args()
    for name, value in vars(options).items():
        if value <= 0:
            parser.error(f"--{name} {value:g}: it must be above 0")
    # slow imports, which --help does not need
    import torch

    from grpo_api.resolve import resolve_lora
    from grpo_api.v1alpha1.spec import LoraSpec
    from grpo_bench.machine import circumstances
    from grpo_lora.measure import measure
    from grpo_runtime.trainer.distributed import Ranks, StopRequest

    torch.set_num_threads(1)
    ranks = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())
    print(circumstances())
    print(
        f"{'':8}{'trained':>10}{'moments':>10}{'sync':>10}{'checkpoint':>12}{'step':>8}{'read':>8}{'save':>8}"
    )
    for name, lora in (("whole", None), ("adapter", resolve_lora(LoraSpec(rank=options.rank)))):
        found = measure(int(options.parameters * 1e6), lora=lora, ranks=ranks, num_times=options.times)
        megabytes = (found.moment_bytes, found.sync_bytes, found.checkpoint_bytes)
        seconds = (found.step_seconds, found.read_seconds, found.save_seconds)
        print(
            f"{name:8}{found.num_trained / 1e6:>8.2f} M"
            + "".join(
                f"{number / 1e6:>{width}.1f} MB" for number, width in zip(megabytes, (7, 7, 9), strict=True)
            )
            + "".join(f"{number:>6.2f} s" for number in seconds)
        )
    sys.exit(0)
