"""Stand-ins on the CPU for the two ends of a group of vLLM's own nccl engine.

The trainer's end runs the product's code for it. The engine's end is that of a worker without vLLM, whose
communicator has the manners of vLLM's: it waits without a deadline, and does not notice that the other end is
gone. `pod_with_stand_in_nccl.py` puts the same communicator into vLLM's own class.
"""

import base64
import socket
import struct
import threading
from typing import Any, NoReturn, Protocol

import torch
from stand_in_nccl import StandInNccl, port_of

from grpo_runtime.weight_sync.network.meeting import UNIQUE_ID_BYTES

_FLOAT = struct.Struct("<f")


class StandInNcclToVllm(StandInNccl):
    """Rank 0; see `LibraryGroup`."""

    def _connect(self) -> None:
        super()._connect()
        # the sum over all members that vLLM's begin with
        total = sum(_FLOAT.unpack(_received(peer, _FLOAT.size))[0] for peer in self._peers)
        for peer in self._peers:
            peer.sendall(_FLOAT.pack(total))


class StandInPyNccl:
    """Any other rank, with what vLLM's engine uses of its PyNcclCommunicator."""

    def __init__(self, unique_id_bytes: bytes, rank: int, world_size: int, device: object) -> None:
        assert len(unique_id_bytes) == UNIQUE_ID_BYTES
        assert 0 < rank < world_size
        try:
            self._socket = socket.create_connection(("127.0.0.1", port_of(unique_id_bytes)))
        except OSError as error:
            raise RuntimeError("NCCL error: remote process exited") from error
        self._socket.sendall(_FLOAT.pack(0.0))
        self._receive_into(memoryview(bytearray(_FLOAT.size)))

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        assert src == 0
        self._receive_into(tensor.numpy().data)

    def destroy(self) -> None:
        self._socket.close()

    def _receive_into(self, memory: memoryview) -> None:
        num_received = 0
        while num_received < len(memory):
            num = self._socket.recv_into(memory[num_received:])
            if num == 0:
                _wait_without_a_deadline()
            num_received += num


class ModelOfWorker(Protocol):
    """What is served."""

    weights: dict[str, torch.Tensor]


class StandInVllmEngine:
    """vLLM's nccl engine in a worker without vLLM; see `VllmEngine`. It reads a chunk as vLLM does. On a GPU
    its communicator is vLLM's own."""

    def __init__(self, model: ModelOfWorker, *, worker: int, device: torch.device) -> None:
        self._model = model
        self._worker = worker
        self._device = device
        self._chunk_bytes = 0
        self._group: Any = None

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        return init_dict

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._chunk_bytes = init_info["packed_buffer_size_bytes"]
        unique_id = base64.b64decode(init_info["nccl_unique_id_b64"], validate=True)
        rank = init_info["rank_offset"] + self._worker
        communicator: Any = StandInPyNccl
        if self._device.type == "cuda":
            from vllm.distributed.device_communicators import pynccl

            torch.cuda.set_device(self._device)
            pynccl.current_stream = torch.cuda.current_stream  # vLLM's CPU build has none
            communicator = pynccl.PyNcclCommunicator.from_unique_id_bytes
        self._group = communicator(unique_id, rank, init_info["world_size"], self._device)

    def start_weight_update(self) -> None:
        # vLLM's takes the layers apart: there is nothing to serve
        self._model.weights = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        assert self._group is not None
        names, shapes = update_info["names"], update_info["shapes"]
        dtypes = [getattr(torch, name) for name in update_info["dtype_names"]]
        sizes = [
            torch.empty(shape, dtype=dtype, device="meta").nbytes
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        first, size = 0, 0
        for index in range(len(names)):
            size += sizes[index]
            if size > self._chunk_bytes or index == len(names) - 1:
                chunk = torch.empty(size, dtype=torch.uint8, device=self._device)
                stream = torch.cuda.current_stream() if chunk.is_cuda else None
                self._group.broadcast(chunk, src=0, stream=stream)
                parts = chunk.cpu().split(sizes[first : index + 1])
                for at, part in enumerate(parts, first):
                    self._model.weights[names[at]] = part.view(dtypes[at]).view(shapes[at]).clone()
                first, size = index + 1, 0

    def finish_weight_update(self) -> None:
        return

    def shutdown(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.destroy()


def _received(peer: socket.socket, num_bytes: int) -> bytes:
    data = peer.recv(num_bytes, socket.MSG_WAITALL)
    if len(data) < num_bytes:
        raise ConnectionResetError("the other end is gone")
    return data


def _wait_without_a_deadline() -> NoReturn:
    """As NCCL, which does not notice that the other end is gone."""
    while True:
        threading.Event().wait()
