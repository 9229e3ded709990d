"""Copies of weights and moments for a checkpoint: whether each has what was there when the call returns, and
also once training has overwritten them. Nothing is computed: new values are copied to the GPU."""

from still_strategy import StillPolicy

from grpo_bench.random_model import random_model
from grpo_gpu.shapes import SHAPES
from grpo_runtime.trainer.checkpoint.shard import HostCopier
from grpo_runtime.trainer.device import training_device


def main() -> None:
    model = random_model(SHAPES["tiny"], vocabulary=1 << 14, num_kv_heads=2)
    training = StillPolicy(model.to(training_device(local_rank=0)))
    copier = HostCopier(training.model, training, rank=0, num_writers=1)  # type: ignore[arg-type]
    training.set(0.0)
    for step in range(3):
        copy = copier.copy()
        for when in ("at once", "later"):
            print(when, "weights", is_all(copy.model, step), "moments", is_all(copy.optimizer, -step))
            training.set(step + 1.0)


def is_all(copied: dict[str, object], number: int) -> bool:
    return len(copied) > 5 and all(bool((tensor == number).all()) for tensor in copied.values())


if __name__ == "__main__":
    main()
