"""The stream of bytes and its manifest."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.packing import TensorEntry, WeightManifest, pack, unpack

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


@given(shapes=SHAPES, dtype=DTYPES, buffer_bytes=st.integers(1, 200))
def test_unpacking_gives_back_what_was_packed(
    shapes: list[list[int]], dtype: torch.dtype, buffer_bytes: int
) -> None:
    weights = [(f"w{i}", (torch.rand(shape) * 100).to(dtype)) for i, shape in enumerate(shapes)]
    packed = pack(FixedWeights(weights), buffer_bytes=buffer_bytes)

    assert all(len(buffer) == buffer_bytes for buffer in packed.buffers[:-1])
    flat = torch.cat([*packed.buffers, torch.empty(0, dtype=torch.uint8)])
    for (name, tensor), (found_name, found) in zip(weights, unpack(flat, packed.manifest), strict=True):
        assert found_name == name
        assert torch.equal(found, tensor)


def test_packing_copies_so_that_training_may_go_on() -> None:
    weight = torch.ones(4)
    packed = pack(FixedWeights([("w", weight)]))
    weight.zero_()
    assert torch.equal(dict(unpack(packed.buffers[0], packed.manifest))["w"], torch.ones(4))


def test_a_dtype_that_cannot_travel_is_named() -> None:
    with pytest.raises(ValueError, match="weight w has dtype complex64"):
        pack(FixedWeights([("w", torch.zeros(2, dtype=torch.complex64))]))


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="w is there twice"):
        pack(FixedWeights([("w", torch.zeros(2)), ("w", torch.zeros(2))]))


def test_a_source_that_gives_another_tensor_than_its_layout_says_is_refused() -> None:
    class LyingWeights(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield "w", torch.zeros(3)

    with pytest.raises(ValueError, match=r"shape=\(3,\).* where its layout has .*shape=\(2,\)"):
        pack(LyingWeights([("w", torch.zeros(2))]))


def test_a_manifest_whose_tensors_overlap_or_overrun_is_refused() -> None:
    entries = (
        TensorEntry(name="a", dtype="float32", shape=(8,), offset=0),
        TensorEntry(name="b", dtype="float32", shape=(8,), offset=16),
        TensorEntry(name="c", dtype="float32", shape=(8,), offset=64),
    )
    manifest = WeightManifest(tensors=entries, num_bytes=80, buffer_bytes=16, sha256="0" * 64)
    assert manifest.problems() == [
        "b starts at byte 16, which is taken or not aligned",
        "the tensors need 96 bytes but the stream has 80",
    ]
