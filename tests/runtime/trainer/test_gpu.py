"""What only a GPU shows of the trainer: its steps are those of the CPU, and its memory. The steps themselves
are computed on the CPU in tests/bench/test_gpu_learner.py and in all other tests."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from still_strategy import StillPolicy

from grpo_bench.random_model import random_model
from grpo_gpu.learner import WAYS, Load, Way, figures
from grpo_gpu.shapes import SHAPES, Shape
from grpo_runtime.trainer.checkpoint.shard import HostCopier
from grpo_runtime.trainer.device import collective_backend, training_device
from grpo_runtime.trainer.distributed import Ranks, StopRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: make test-gpu"),
]

CPU = torch.device("cpu")
GPU = training_device(local_rank=0)
LOAD = Load(SHAPES["tiny"], num_sequences=16, longest=64, budget=256, num_rounds=3)
WIDE = Shape(hidden=256, intermediate=512, num_layers=2, num_heads=4, num_kv_heads=2, vocab_size=100_000)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    backend = collective_backend(GPU)
    ranks = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend=backend, stop=StopRequest())
    yield ranks
    ranks.leave()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_step_on_the_gpu_learns_what_one_on_the_cpu_learns(way: Way, ranks: Ranks) -> None:
    # in bfloat16 on the GPU, in float32 on the CPU
    found, expected = (figures(LOAD, way, ranks=ranks, device=device, peak=None) for device in (GPU, CPU))
    for name in ("loss", "grad_norm", "entropy"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=0.03, abs=0.003)


def test_logits_of_a_micro_batch_are_never_whole_in_memory(ranks: Ranks) -> None:
    load = replace(LOAD, shape=WIDE, longest=512, budget=8192)
    found = figures(load, WAYS[0], ranks=ranks, device=GPU, peak=None)
    parameters = 4 * 4 * (WIDE.computed_parameters + WIDE.hidden * WIDE.vocab_size)
    whole = 4 * sum(load.lengths) * WIDE.vocab_size
    assert found.peak_bytes < parameters + whole / 2


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_plan_of_memory_is_what_is_measured(way: Way, ranks: Ranks) -> None:
    # so large that workspaces of libraries and what the allocator rounds up are little beside it
    load = replace(LOAD, shape=replace(WIDE, num_layers=12), num_sequences=32, longest=512, budget=8192)
    found = figures(load, way, ranks=ranks, device=GPU, peak=None)
    assert 0.9 * found.peak_bytes <= found.planned_bytes <= 1.25 * found.peak_bytes


def test_activations_that_are_computed_again_need_less_memory(ranks: Ranks) -> None:
    deep = replace(LOAD, shape=replace(WIDE, num_layers=12, vocab_size=1000), longest=512, budget=8192)
    recomputed, kept = (figures(deep, way, ranks=ranks, device=GPU, peak=None) for way in WAYS[:2])
    assert recomputed.peak_bytes < 0.7 * kept.peak_bytes


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_steps_repeat_to_the_last_bit(way: Way, ranks: Ranks) -> None:
    load = replace(LOAD, shape=replace(WIDE, num_layers=6), longest=512, budget=8192)
    first, again = (figures(load, way, ranks=ranks, device=GPU, peak=None) for _ in range(2))
    assert first.metrics == again.metrics


def test_copies_for_a_checkpoint_are_whole_before_training_goes_on_and_their_memory_is_kept() -> None:
    model = random_model(WIDE, vocabulary=WIDE.vocab_size, num_kv_heads=WIDE.num_kv_heads).to(GPU)
    strategy = StillPolicy(model)
    strategy.set(1.0)
    copier = HostCopier(strategy.model, strategy, rank=0, num_writers=1)  # type: ignore[arg-type]
    addresses = []
    for step in range(2):
        expected = {name: tensor.cpu() for name, tensor in strategy.optimizer_state()}
        weights = {name: tensor.detach().cpu() for name, tensor in strategy.model.named_parameters()}
        copy = copier.copy()
        strategy.set(step + 2.0)
        torch.cuda.synchronize()
        assert all(copy.optimizer[name].equal(tensor) for name, tensor in expected.items())
        assert all(copy.model[name].equal(tensor) for name, tensor in weights.items())
        addresses.append([tensor.data_ptr() for tensor in (*copy.model.values(), *copy.optimizer.values())])
    assert addresses[0] == addresses[1]
