"""What changed between two streams, found and put into the older one: to the last bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_encoding import changed_at, random_bytes

from grpo_runtime.weight_sync.source import TensorSpec
from grpo_runtime.weight_sync.sparse.changes import (
    PART_ELEMENTS,
    ChangedPart,
    ChangeFinder,
    Changes,
    ChangeTable,
    Encoding,
    exchange,
)
from grpo_runtime.weight_sync.stream.manifest import WIRE_DTYPES, WeightManifest, manifest_of, view_of

BASE = bytes(range(16))


def found(
    manifest: WeightManifest, old: torch.Tensor, new: torch.Tensor, *, part_elements: int = PART_ELEMENTS
) -> Changes | None:
    finder = ChangeFinder(manifest, part_elements=part_elements)
    for _ in finder.find(old, new):
        pass
    return finder.changes(base=BASE)


NUMBERS = {
    torch.float32: (torch.int32, [0x7FC00000, 0x7FC00001, 0x7F800001, -0x80000000, 0]),
    torch.bfloat16: (torch.int16, [0x7FC0, 0x7FC1, 0x7F81, -0x8000, 0]),
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_nans_and_the_sign_of_zero_are_compared_by_their_bits(dtype: torch.dtype) -> None:
    integer, patterns = NUMBERS[dtype]
    layout = [TensorSpec("numbers", (len(patterns) ** 2 + 100,), dtype)]
    manifest = manifest_of(layout)
    old, new = torch.zeros(2, manifest.num_bytes, dtype=torch.uint8)
    pairs = torch.tensor([[a, b] for a in patterns for b in patterns], dtype=integer)
    for stream, column in ((old, 0), (new, 1)):
        view_of(manifest.tensors[0], stream).view(integer)[: len(pairs)] = pairs[:, column]

    changes = found(manifest, old, new)

    assert changes is not None
    assert changes.num_changed == int((pairs[:, 0] != pairs[:, 1]).sum())
    exchange(old, changes.body, manifest=manifest, table=changes.table)
    assert torch.equal(old, new)


@given(seed=st.integers(0, 2**20), share=st.sampled_from([0.0, 0.003, 0.05]))
def test_changes_of_many_tensors_lead_to_the_new_stream_and_back(seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    layout = [
        TensorSpec(f"{dtype} {shape}", shape, dtype)
        for dtype in WIRE_DTYPES.values()
        for shape in ((), (0, 3), (17,), (31, 57))
    ]
    manifest = manifest_of(layout)
    old = torch.zeros(manifest.num_bytes, dtype=torch.uint8)
    new = old.clone()
    for entry in manifest.tensors:
        part = slice(entry.offset, entry.offset + entry.num_bytes)
        old[part] = random_bytes(entry.num_bytes, seed=seed)
        chosen = torch.rand(entry.num_bytes, generator=generator) < share
        new[part] = old[part] ^ chosen
    changes = found(manifest, old, new)
    assert changes is not None
    assert changes.table.problems(manifest) == []
    table = ChangeTable.model_validate_json(changes.table.model_dump_json())

    stream = old.clone()
    exchange(stream, changes.body, manifest=manifest, table=table)
    assert torch.equal(stream, new)
    exchange(stream, changes.body, manifest=manifest, table=table)
    assert torch.equal(stream, old)


def test_changes_in_every_part_of_a_tensor_of_several_are_found_and_put_in_their_places() -> None:
    """Tensors of three parts, the last one shorter, between others: of one dtype the elements are wider."""
    layout = [
        TensorSpec("first", (10,), torch.float32),
        TensorSpec("halves", (3, 50), torch.bfloat16),
        TensorSpec("wide", (150,), torch.float32),
        TensorSpec("last", (10,), torch.float32),
    ]
    manifest = manifest_of(layout)
    old = random_bytes(manifest.num_bytes, seed=3)
    new = old.clone()
    for entry in manifest.tensors[1:3]:
        width = entry.num_bytes // 150
        for element in (0, 63, 64, 127, 128, 149):
            new[entry.offset + element * width] ^= 1
    changes = found(manifest, old, new, part_elements=64)
    assert changes is not None
    assert [(part.tensor, part.start, part.size, part.num_changed) for part in changes.table.parts] == [
        (tensor, start, size, 2) for tensor in (1, 2) for start, size in ((0, 64), (64, 64), (128, 22))
    ]
    assert changes.table.problems(manifest) == []
    exchange(old, changes.body, manifest=manifest, table=changes.table)
    assert torch.equal(old, new)


def problems_of(parts: list[tuple[int, int]]) -> list[str]:
    """What is wrong with changes of a whole part of 4 elements each, at these tensors and places."""
    manifest = manifest_of([TensorSpec(name, (12,), torch.uint8) for name in ("first", "second")])
    given = [
        ChangedPart(tensor=tensor, start=start, size=4, encoding=Encoding.ALL, num_changed=4, index_bytes=0)
        for tensor, start in parts
    ]
    return ChangeTable(base="0" * 32, parts=tuple(given), num_bytes=16 * len(given)).problems(manifest)


def test_parts_that_overlap_or_are_not_in_order_are_told() -> None:
    assert problems_of([(0, 0), (0, 4), (1, 0), (1, 8)]) == []
    assert problems_of([(1, 0), (0, 4)]) == ["the changes of first are not in order"]
    assert problems_of([(0, 4), (0, 0)]) == ["the changes of first are not in order"]
    assert problems_of([(1, 4), (1, 7)]) == ["the changes of second are not in order"]
    assert problems_of([(1, 9)]) == ["the changes of second go beyond it"]
    assert problems_of([(2, 0)]) == ["changes of tensor 2, and there are 2"]


@pytest.mark.parametrize(("num_changed", "are_sent"), [(400, True), (480, False), (1000, False)])
def test_changes_are_sent_up_to_half_of_all_bytes(num_changed: int, are_sent: bool) -> None:
    manifest = manifest_of([TensorSpec("all", (1000,), torch.float32)])
    old = random_bytes(manifest.num_bytes, seed=0)
    changes = found(manifest, old, changed_at(old, 4 * torch.arange(num_changed)))
    assert (changes is not None) == are_sent


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        ({"tensor": 3}, "changes of tensor 3, and there are 1"),
        ({"start": 900}, "the changes of all go beyond it"),
        ({"num_changed": 1001}, "more of all changed than there is"),
        ({"index_bytes": 500}, "the changes need"),
    ],
)
def test_a_table_that_does_not_fit_is_told(alter: dict[str, int], problem: str) -> None:
    manifest = manifest_of([TensorSpec("all", (1000,), torch.bfloat16)])
    old = random_bytes(manifest.num_bytes, seed=0)
    changes = found(manifest, old, changed_at(old, torch.tensor([4, 700])))
    assert changes is not None
    part = changes.table.parts[0].model_copy(update=alter)
    table = changes.table.model_copy(update={"parts": (part,)})
    assert problem in table.problems(manifest)[0]
