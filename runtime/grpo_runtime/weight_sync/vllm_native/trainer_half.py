"""The trainer's half of a transfer engine of vLLM: how it is found by its name, and what it is given."""

import base64
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields
from typing import Any

import torch
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer import nccl_common
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
from vllm.plugins import load_general_plugins

from grpo_runtime.errors import UserError
from grpo_runtime.weight_sync.group import local_address_towards
from grpo_runtime.weight_sync.stream.manifest import LARGEST_BUFFER_BYTES, WeightManifest
from grpo_runtime.weight_sync.vllm_native.receiver import NCCL

Half = type[TrainerWeightTransferEngine[Any]]
_KNOWN_FIELDS = {"rank", "world_size", "master_address", "master_port", "packed", "packed_buffer_size_bytes"}
"""Fields of a trainer's init info that are known here."""


def find_half(name: str) -> Half:
    """The trainer's half of this name. Plugins of vLLM are asked to register theirs first.

    Raises UserError when there is none, and when it needs what nobody here knows.
    """
    load_general_plugins()
    loader = WeightTransferTrainerFactory._registry.get(name)
    if loader is None:
        raise UserError(
            f"weightSync.vllmEngine {name} has no trainer's half in the trainer image: register it with "
            "WeightTransferTrainerFactory in a plugin of vLLM (entry point group vllm.general_plugins); "
            f"there are {', '.join(WeightTransferTrainerFactory._registry)}"
        )
    half = NcclTrainer if name == NCCL else loader()
    if missing := _required_fields(half) - _KNOWN_FIELDS:
        raise UserError(
            f"weightSync.vllmEngine {name} cannot be used: its trainer's half needs "
            f"{', '.join(sorted(missing))}, and gets {', '.join(sorted(_KNOWN_FIELDS))}"
        )
    return half


def _required_fields(half: Half) -> set[str]:
    return {
        field.name
        for field in fields(half.init_info_cls)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    }


def init_info_of(half: Half, *, size: int, host: str, manifest: WeightManifest) -> TrainerInitInfo:
    """Init info of a half about its group, which has `size` members: rank 0 is the trainer's. `host` is where
    the engine is."""
    address = local_address_towards(host)
    known = {
        "rank": 0,
        "world_size": size,
        "master_address": address,
        "master_port": _free_port(address),
        # what is packed may begin where its dtype cannot be read, unless all have one
        "packed": len({entry.dtype for entry in manifest.tensors}) == 1,
        # vLLM's own default is 1 GiB, which an engine may lack beside its KV cache
        "packed_buffer_size_bytes": LARGEST_BUFFER_BYTES,
    }
    asked = {field.name for field in fields(half.init_info_cls) if field.init}
    found: TrainerInitInfo = half.init_info_cls(**{name: known[name] for name in asked & known.keys()})
    return found


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


class NcclTrainer(NCCLTrainerWeightTransferEngine):
    """The trainer's half of vLLM's nccl engine, which meets by NCCL's id on the authenticated control
    channel. vLLM's own hosts a store, from which engines unpickle what anybody who reaches it has written."""

    @classmethod
    def trainer_init(
        cls,
        init_info: NCCLTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> "NcclTrainer":
        """Meet the workers of the engine. Blocks, and nothing can interrupt it."""
        if source is None:
            raise ValueError("vLLM's nccl engine sends from a source of weights")
        packing: dict[str, Any] = {
            "packed": init_info.packed,
            "packed_buffer_size_bytes": init_info.packed_buffer_size_bytes,
            "packed_num_buffers": init_info.packed_num_buffers,
        }
        half = cls(client=client, source=source, **packing)
        unique_id = new_nccl_id()
        info = NCCLWeightTransferInitInfo(
            rank_offset=1,
            world_size=init_info.world_size,
            nccl_unique_id_b64=base64.b64encode(unique_id).decode(),
            **packing,
        )
        with ThreadPoolExecutor(max_workers=1) as beside:
            answer = beside.submit(client.init_weight_transfer_engine, worker_init_payload(info))
            half.model_update_group = nccl_common.uid_init_process_group(
                unique_id, 0, init_info.world_size, torch.accelerator.current_device_index()
            )
            answer.result()
        return half


def new_nccl_id() -> bytes:
    """An id for a group of NCCL."""
    return bytes(NCCLLibrary().ncclGetUniqueId())
