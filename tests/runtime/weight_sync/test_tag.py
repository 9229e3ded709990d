"""The tag that a GPU computes, here on the CPU; `test_gpu.py` compares the two."""

import pytest
import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305

from grpo_runtime.weight_sync.stream.manifest import TensorEntry
from grpo_runtime.weight_sync.tag import NUM_COLUMNS, ROW_BYTES, RowDigest, hash_rows

KEY = bytes(range(32))
DATA = torch.randint(0, 256, (3 * ROW_BYTES + 100,), generator=torch.Generator().manual_seed(1)).to(
    torch.uint8
)


def tag_of(*parts: torch.Tensor, key: bytes = KEY, tensors: tuple[TensorEntry, ...] = ()) -> bytes:
    digest = RowDigest(key, tensors)
    for part in parts:
        digest.update(part)
    return digest.tag()


@pytest.mark.parametrize("value", [-128, 127])
def test_hashes_are_exact_up_to_the_largest_numbers(value: int) -> None:
    rows = torch.full((2, ROW_BYTES), value, dtype=torch.int8)
    coefficients = torch.full((ROW_BYTES, NUM_COLUMNS), -128, dtype=torch.int8)
    assert hash_rows(rows, coefficients).tolist() == [[-128 * value * ROW_BYTES] * NUM_COLUMNS] * 2


def test_hashes_are_the_product_of_whole_numbers() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(-128, 128, (40, ROW_BYTES), generator=generator, dtype=torch.int8)
    coefficients = torch.randint(-128, 128, (ROW_BYTES, NUM_COLUMNS), generator=generator, dtype=torch.int8)
    # torch._int_mm, which a GPU takes, is not exact on a CPU with AVX2 only: test_gpu.py compares the two
    assert torch.equal(hash_rows(rows, coefficients).long(), rows.long() @ coefficients.long())


def test_the_key_of_poly1305_is_made_as_the_rfc_makes_it() -> None:
    """RFC 8439, appendix A.4, test vector 1: key and nonce are zero."""
    once = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    expected = Poly1305(once)
    expected.update(b"[]\n")
    assert tag_of(key=bytes(32)) == expected.finalize()


@pytest.mark.parametrize("sizes", [[1], [ROW_BYTES], [ROW_BYTES - 1, 2, 5000], [64, 10_000]])
def test_the_tag_does_not_depend_on_the_buffers(sizes: list[int]) -> None:
    parts = torch.split(DATA, [*sizes, len(DATA) - sum(sizes)])
    assert tag_of(*parts) == tag_of(DATA)


@pytest.mark.parametrize("position", [0, 1023, 1024, ROW_BYTES, len(DATA) - 1])
def test_a_bit_that_flips_anywhere_changes_the_tag(position: int) -> None:
    other = DATA.clone()
    other[position] ^= 0x80
    assert tag_of(other) != tag_of(DATA)


def test_the_tag_depends_on_names_dtypes_and_shapes() -> None:
    entries = [
        TensorEntry(name=name, dtype=dtype, shape=shape, offset=0)
        for name, dtype, shape in (
            ("w", "float32", (3,)),
            ("v", "float32", (3,)),
            ("w", "int32", (3,)),
            ("w", "float32", (3, 1)),
        )
    ]
    assert len({tag_of(DATA, tensors=(entry,)) for entry in entries}) == 4
