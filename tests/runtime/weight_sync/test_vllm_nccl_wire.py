"""What the trainer sends to vLLM's own nccl engine is what vLLM's own sender would, to the last byte."""

import base64
from dataclasses import asdict, fields

import pytest
import torch
from receiver_harness import some_weights
from stand_in_nccl import StandInDevice
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors, unpack_tensor
from weight_sources import FixedWeights

from grpo_api.v1alpha1.spec.weight_sync import ENGINES_OF_VLLM
from grpo_runtime.weight_sync.engine_names import name_in_vllm
from grpo_runtime.weight_sync.network.meeting import UNIQUE_ID_BYTES
from grpo_runtime.weight_sync.registry import all_backends
from grpo_runtime.weight_sync.stream.manifest import WeightManifest, manifest_of
from grpo_runtime.weight_sync.vllm_nccl.wire import (
    ENGINE_OF_VLLM,
    InitMessage,
    UpdateMessage,
    packed_chunks,
    require_views,
)

CHUNK_BYTES = [1, 16, 4096, 12_804, 12_808, 2**20]


def manifest(weights: dict[str, torch.Tensor]) -> WeightManifest:
    return manifest_of(FixedWeights(weights.items()).layout())


def chunks_of_vllm(weights: dict[str, torch.Tensor], *, chunk_bytes: int) -> list[torch.Tensor]:
    """What vLLM's sender broadcasts."""
    left, chunks = iter(weights.items()), []
    while chunk := pack_tensors(left, lambda named: named[1], chunk_bytes):
        chunks.append(chunk.packed_tensor)
    return chunks


@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
@pytest.mark.filterwarnings("ignore:Tensor .* exceeds buffer_size_bytes")
def test_the_chunks_are_those_of_vllms_sender(chunk_bytes: int) -> None:
    device, weights = StandInDevice(), some_weights(1)
    with device.use():
        ours = list(packed_chunks(weights.items(), chunk_bytes=chunk_bytes, device=device))
    theirs = chunks_of_vllm(weights, chunk_bytes=chunk_bytes)
    assert [chunk.tolist() for chunk in ours] == [chunk.tolist() for chunk in theirs]


def test_the_update_is_that_of_vllms_sender() -> None:
    weights = some_weights(1)
    message = UpdateMessage.of(manifest(weights), connection="c", transfer_seconds=1.0)
    theirs = NCCLWeightTransferUpdateInfo(
        names=list(weights),
        dtype_names=[str(tensor.dtype).split(".")[-1] for tensor in weights.values()],
        shapes=[list(tensor.shape) for tensor in weights.values()],
    )
    assert message.for_vllm() == asdict(theirs)


def test_the_init_is_what_vllms_engine_takes_with_an_id_and_no_store() -> None:
    unique_id = bytes(range(UNIQUE_ID_BYTES))
    message = InitMessage(
        nccl_unique_id_b64=base64.b64encode(unique_id).decode(),
        world_size=3,
        packed_buffer_size_bytes=7,
        connection="c" * 16,
        meeting_seconds=1.0,
    )
    understood = NCCLWeightTransferInitInfo(**message.for_vllm())
    assert worker_init_payload(understood) == message.for_vllm()
    assert understood.nccl_unique_id_bytes == unique_id
    assert (understood.master_address, understood.master_port) == (None, None)
    # a key that vLLM adds is one that somebody has to think about
    ours = {*message.for_vllm(), "master_address", "master_port"}
    assert {field.name for field in fields(NCCLWeightTransferInitInfo)} == ours


@pytest.mark.parametrize("chunk_bytes", CHUNK_BYTES)
@pytest.mark.filterwarnings("ignore:Tensor .* exceeds buffer_size_bytes")
def test_weights_are_refused_exactly_where_vllm_cannot_read_them(chunk_bytes: int) -> None:
    weights = some_weights(1)
    left, is_read = iter(weights.items()), True
    while chunk := pack_tensors(left, lambda named: named[1], chunk_bytes):
        try:
            unpack_tensor(chunk.packed_tensor, chunk.names, chunk.shapes, chunk.dtypes, chunk.tensor_sizes)
        except RuntimeError:
            is_read = False
    if is_read:
        require_views(manifest(weights), chunk_bytes=chunk_bytes)
    else:
        with pytest.raises(ValueError, match="weight counts would begin at byte"):
            require_views(manifest(weights), chunk_bytes=chunk_bytes)


def test_weights_of_one_dtype_are_never_refused() -> None:
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in some_weights(1).items()}
    for chunk_bytes in CHUNK_BYTES:
        require_views(manifest(weights), chunk_bytes=chunk_bytes)


def test_the_names_that_a_spec_knows_of_vllms_engines_are_those_that_vllm_registers() -> None:
    ours = {name_in_vllm(backend) for backend in all_backends()}
    assert set(WeightTransferEngineFactory._registry) - ours == set(ENGINES_OF_VLLM)
    assert ENGINE_OF_VLLM in ENGINES_OF_VLLM
    assert ours.isdisjoint(ENGINES_OF_VLLM)
