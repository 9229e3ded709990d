"""What `make bench-sparse` measures, on a small model: the share that only what changed has of all bytes."""

import pytest

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.trainer.distributed import Ranks
from grpo_sync.sparse_share import SparseStep, measure_sparse

pytestmark = pytest.mark.matrix


def steps_of(dtype: Dtype, *, num_steps: int, learning_rate: float, ranks: Ranks) -> list[SparseStep]:
    return measure_sparse(
        1_000_000,
        dtype=dtype,
        learning_rate=learning_rate,
        num_steps=num_steps,
        ranks=ranks,
        on_step=lambda step: None,
    )


def share(steps: list[SparseStep]) -> float:
    return sum(step.sent_bytes for step in steps) / sum(step.whole_bytes for step in steps)


def test_over_fifty_steps_at_1e_6_few_of_the_bytes_of_bfloat16_are_sent(ranks: Ranks) -> None:
    steps = steps_of(Dtype.BFLOAT16, num_steps=50, learning_rate=1e-6, ranks=ranks)
    assert all(step.num_changed > 0 for step in steps)
    assert 0 < share(steps) <= 0.05


def test_more_is_sent_at_a_larger_learning_rate_and_all_of_float32(ranks: Ranks) -> None:
    small, large = (
        share(steps_of(Dtype.BFLOAT16, num_steps=3, learning_rate=rate, ranks=ranks)) for rate in (1e-6, 1e-5)
    )
    assert large > 2 * small
    float32 = steps_of(Dtype.FLOAT32, num_steps=2, learning_rate=1e-6, ranks=ranks)
    assert share(float32) == pytest.approx(1.0, abs=1e-4)  # and a tag
    assert [step.num_changed for step in float32] == [0, 0]
