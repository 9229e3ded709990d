"""Which elements of a part changed, as bytes and back: to the last bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_runtime.weight_sync.sparse.changes import Encoding, encode, positions_of

INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]


def random_bytes(num_bytes: int, *, seed: int) -> torch.Tensor:
    return torch.randint(
        0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def changed_at(old: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """`old` with other bits at these positions."""
    new = old.clone()
    new[positions] ^= 1
    return new


@given(
    dtype=st.sampled_from(INTEGERS),
    num_elements=st.integers(1, 5000),
    share=st.sampled_from([0.0, 0.0005, 0.02, 0.2, 0.7, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_what_changed_is_found_again_whatever_the_bits_are(
    dtype: torch.dtype, num_elements: int, share: float, seed: int
) -> None:
    old = random_bytes(num_elements * dtype.itemsize, seed=seed).view(dtype)
    chosen = torch.rand(num_elements, generator=torch.Generator().manual_seed(seed + 1)) < share
    new = changed_at(old, chosen)

    encoded = encode(old, new)

    if encoded is None:
        assert torch.equal(old, new)
        return
    positions = positions_of(
        encoded.encoding, encoded.index, num_changed=len(encoded.values), num_elements=num_elements
    )
    mended = old.clone()
    mended[positions] = encoded.values
    assert torch.equal(mended, new)
    sent = len(encoded.index) + len(encoded.values) * dtype.itemsize
    assert sent <= num_elements * dtype.itemsize


@pytest.mark.parametrize(
    ("num_changed", "encoding"),
    [(1, Encoding.GAPS), (100, Encoding.GAPS), (600, Encoding.BITMAP), (4000, Encoding.ALL)],
)
def test_the_shorter_index_is_taken(num_changed: int, encoding: Encoding) -> None:
    old = torch.zeros(4000, dtype=torch.int16)
    positions = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:num_changed]
    encoded = encode(old, changed_at(old, positions))
    assert encoded is not None
    assert encoded.encoding is encoding


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 509, 510, 511, 70_000])
def test_a_gap_of_any_length_is_kept(gap: int) -> None:
    old = torch.zeros(gap + 2, dtype=torch.int64)
    encoded = encode(old, changed_at(old, torch.tensor([gap])))
    assert encoded is not None
    positions = positions_of(encoded.encoding, encoded.index, num_changed=1, num_elements=gap + 2)
    assert torch.arange(gap + 2)[positions].tolist() == [gap]


@pytest.mark.parametrize(("index", "num_changed"), [([5], 2), ([255, 255], 1), ([200, 200], 2)])
def test_gaps_that_lead_elsewhere_are_refused(index: list[int], num_changed: int) -> None:
    with pytest.raises(ValueError, match="its index"):
        positions_of(
            Encoding.GAPS,
            torch.tensor(index, dtype=torch.uint8),
            num_changed=num_changed,
            num_elements=300,
        )
