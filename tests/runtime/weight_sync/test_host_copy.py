"""The copy of the weights that is sent: its stream, its manifest, and what it waits for."""

import threading
from collections.abc import Iterator

import pytest
import torch
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st
from weight_sources import FixedWeights

from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.stream.manifest import TensorEntry, WeightManifest, unpack
from grpo_runtime.weight_sync.stream.memory import MemoryPool, private_memory
from grpo_runtime.weight_sync.tag import TAG_BYTES, StreamDigest

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


def stream_of(copy: HostCopy) -> torch.Tensor:
    return torch.cat([buffer.clone() for buffer in copy.buffers()])


@given(shapes=SHAPES, dtype=DTYPES, buffer_bytes=st.integers(1, 200))
def test_unpacking_gives_back_what_was_copied(
    shapes: list[list[int]], dtype: torch.dtype, buffer_bytes: int
) -> None:
    weights = [(f"w{i}", (torch.rand(shape) * 100).to(dtype)) for i, shape in enumerate(shapes)]
    copy = HostCopy(FixedWeights(weights), buffer_bytes=buffer_bytes)

    buffers = list(copy.buffers())
    assert all(len(buffer) == buffer_bytes for buffer in buffers[:-1])
    assert sum(map(len, buffers)) == copy.num_bytes + TAG_BYTES
    found = list(unpack(stream_of(copy), copy.manifest))
    assert [name for name, _ in found] == [name for name, _ in weights]
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(found, weights, strict=True))


def test_a_large_tensor_is_cast_to_the_dtype_that_travels_as_torch_casts_it() -> None:
    class Bfloat16(FixedWeights):
        """float32 tensors that travel as bfloat16."""

        def layout(self):
            return tuple(type(spec)(spec.name, spec.shape, torch.bfloat16) for spec in super().layout())

    weight = torch.randn(3, 200_001).t()  # several pieces, and not contiguous
    copy = HostCopy(Bfloat16([("w", weight)]))
    assert torch.equal(dict(unpack(stream_of(copy), copy.manifest))["w"], weight.to(torch.bfloat16))


def test_copying_lets_training_go_on() -> None:
    weight = torch.ones(4)
    copy = HostCopy(FixedWeights([("w", weight)]))
    assert copy.wait_until_read() >= 0
    weight.zero_()
    assert torch.equal(dict(unpack(stream_of(copy), copy.manifest))["w"], torch.ones(4))


def test_what_is_copied_is_sent_before_the_rest_is_read() -> None:
    goes_on = threading.Event()

    class Waiting(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield "first", torch.ones(8)
            assert goes_on.wait(60)
            yield "second", torch.ones(8)

    copy = HostCopy(Waiting([("first", torch.ones(8)), ("second", torch.ones(8))]), buffer_bytes=32)
    first = next(copy.buffers())  # would wait forever for the whole
    goes_on.set()
    assert torch.equal(first.view(torch.float32), torch.ones(8))
    assert copy.wait_until_read() >= 0


def test_what_was_sent_counts_as_far_as_every_reader_came() -> None:
    copy = HostCopy(FixedWeights([("w", torch.ones(16))]), buffer_bytes=32)
    assert copy.num_bytes_sent == 0
    whole = sum(len(buffer) for buffer in copy.buffers())
    assert copy.num_bytes_sent == whole == 64 + TAG_BYTES
    broken = copy.buffers()
    next(broken)
    next(broken)  # asks for the second one, so the first one is on its way
    broken.close()
    assert copy.num_bytes_sent == whole + 32


def test_the_memory_of_a_copy_that_nobody_reads_any_more_is_used_again() -> None:
    pool = MemoryPool(private_memory)

    def copy() -> HostCopy:
        made = HostCopy(FixedWeights([("w", torch.ones(2**10))]), pool=pool)
        made.wait_until_read()
        return made

    first, second = copy(), copy()
    addresses = [next(one.buffers()).data_ptr() for one in (first, second)]
    assert len(set(addresses)) == 2
    reading = first.buffers()
    next(reading)
    del first
    assert next(copy().buffers()).data_ptr() not in addresses
    del reading
    assert next(copy().buffers()).data_ptr() == addresses[0]
    second.set_aside()
    del second
    assert next(copy().buffers()).data_ptr() == addresses[0]


def test_a_source_that_gives_nothing_is_given_up() -> None:
    goes_on = threading.Event()

    class Hanging(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            assert goes_on.wait(60)
            yield from super().tensors()

    copy = HostCopy(Hanging([("w", torch.ones(8))]))
    with pytest.raises(WeightSyncError, match=r"nothing to send for 0\.05 s"):
        next(copy.buffers(stall_seconds=0.05))
    goes_on.set()
    assert copy.wait_until_read() >= 0


def test_a_dtype_that_cannot_travel_is_named() -> None:
    with pytest.raises(ValueError, match="weight w has dtype complex64"):
        HostCopy(FixedWeights([("w", torch.zeros(2, dtype=torch.complex64))]))


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="w is there twice"):
        HostCopy(FixedWeights([("w", torch.zeros(2)), ("w", torch.zeros(2))]))


def test_a_source_that_gives_another_tensor_than_its_layout_says_is_refused() -> None:
    class LyingWeights(FixedWeights):
        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield "w", torch.zeros(3)

    copy = HostCopy(LyingWeights([("w", torch.zeros(2))]))
    with pytest.raises(ValueError, match=r"w \[3\] where its layout has .*shape=\(2,\)"):
        copy.wait_until_read()
    with pytest.raises(WeightSyncError, match="cannot be read"):
        list(copy.buffers())


def test_a_manifest_whose_tensors_overlap_or_overrun_is_refused() -> None:
    entries = (
        TensorEntry(name="a", dtype="float32", shape=(8,), offset=0),
        TensorEntry(name="b", dtype="float32", shape=(8,), offset=16),
        TensorEntry(name="c", dtype="float32", shape=(8,), offset=64),
    )
    manifest = WeightManifest(tensors=entries, num_bytes=80, buffer_bytes=16)
    assert manifest.problems() == [
        "b starts at byte 16, which is taken or not aligned",
        "the tensors need 96 bytes but the stream has 80",
    ]


KEY = bytes.fromhex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b")


def test_the_tag_is_that_of_the_rfc() -> None:
    """RFC 8439, section 2.5.2, after the header of no tensor."""
    digest = StreamDigest(KEY, ())
    whole = Poly1305(KEY)
    text = b"Cryptographic Forum Research Group"
    digest.update(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    whole.update(b"[]\n" + text)
    assert digest.tag() == whole.finalize()


@pytest.mark.parametrize("buffer_bytes", [64, 4096, 10_000_000])
def test_the_tag_depends_on_names_dtypes_shapes_and_bytes_but_not_on_buffers(buffer_bytes: int) -> None:
    tags = [
        tag_of(tensors, buffer_bytes=size)
        for tensors, size in (
            ([("w", torch.ones(3, 400))], 1000),
            ([("w", torch.ones(3, 400))], buffer_bytes),
            ([("v", torch.ones(3, 400))], buffer_bytes),
            ([("w", torch.ones(400, 3))], buffer_bytes),
            ([("w", torch.ones(3, 400).view(torch.int32))], buffer_bytes),
            ([("w", torch.ones(3, 400) * 2)], buffer_bytes),
        )
    ]
    assert tags[0] == tags[1]
    assert len(set(tags)) == 5


def tag_of(tensors: list[tuple[str, torch.Tensor]], *, buffer_bytes: int) -> bytes:
    """What follows the bytes of these tensors under one key."""
    copy = HostCopy(FixedWeights(tensors), buffer_bytes=buffer_bytes)
    digest = StreamDigest(KEY, copy.manifest.tensors)
    for buffer in stream_of(copy)[: copy.num_bytes].split(buffer_bytes):
        digest.update(buffer)
    return digest.tag()
