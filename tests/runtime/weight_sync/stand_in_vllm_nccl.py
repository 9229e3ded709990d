"""Stand-ins on the CPU for the communicators of vLLM's own nccl engine, and the engine's half of it in a
worker without vLLM, whose communicator on a GPU is vLLM's.

They have the manners of NCCL: they wait without a deadline, and do not notice that the other end is gone.
`pod_with_stand_in_nccl.py` and `test_vllm_native_into_vllm.py` put them into vLLM's own classes.
"""

import base64
import secrets
import socket
from typing import Any

import torch
from socket_engine import ModelOfWorker, wait_without_a_deadline
from stand_in_nccl import id_of_port, port_of

from grpo_runtime.weight_sync.group import UNIQUE_ID_BYTES

_SERVERS: dict[bytes, socket.socket] = {}
"""Where members come to rank 0 of this process, by the id of their group."""


def new_stand_in_id() -> bytes:
    """An id for a group whose rank 0 is in this process."""
    server = socket.create_server(("127.0.0.1", 0))
    unique_id = id_of_port(server.getsockname()[1], salt=secrets.token_hex(8))
    _SERVERS[unique_id] = server
    return unique_id


class StandInPyNccl:
    """With what vLLM's engine uses of its PyNcclCommunicator."""

    def __init__(self, unique_id_bytes: bytes, rank: int, world_size: int, device: object) -> None:
        assert len(unique_id_bytes) == UNIQUE_ID_BYTES
        assert 0 <= rank < world_size
        self._is_sender = rank == 0
        if self._is_sender:
            with _SERVERS.pop(unique_id_bytes) as server:
                self._peers = [server.accept()[0] for _ in range(1, world_size)]
            return
        try:
            self._peers = [socket.create_connection(("127.0.0.1", port_of(unique_id_bytes)))]
        except OSError as error:
            raise RuntimeError("NCCL error: remote process exited") from error

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        assert src == 0
        memory = tensor.reshape(-1).view(torch.uint8).numpy().data
        if self._is_sender:
            for peer in self._peers:
                peer.sendall(memory)
            return
        num_received = 0
        while num_received < len(memory):
            num = self._peers[0].recv_into(memory[num_received:])
            if num == 0:
                wait_without_a_deadline()
            num_received += num

    def destroy(self) -> None:
        for peer in self._peers:
            peer.close()


class StandInStream:
    """All that is given to it is done at once."""

    def synchronize(self) -> None:
        return


def stand_in_for_cuda() -> None:
    """Let vLLM's nccl engine run in this process without a GPU: its communicators, and what CUDA has beside
    them, are stand-ins."""
    from vllm.distributed.weight_transfer import nccl_common, packed_tensor

    def streams(device_idx: int, num_buffers: int) -> tuple[StandInStream, ...]:
        return tuple(StandInStream() for _ in range(num_buffers))

    nccl_common.uid_init_process_group = StandInPyNccl
    packed_tensor._get_streams = streams
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_: None


class NcclEngineWithoutVllm:
    """vLLM's nccl engine in a worker without vLLM; see `VllmTransferEngine`. It reads chunks as vLLM does."""

    def __init__(self, model: ModelOfWorker, *, worker: int, device: torch.device) -> None:
        self._model = model
        self._worker = worker
        self._device = device
        self._is_packed = True
        self._chunk_bytes = 0
        self._group: Any = None

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        return init_dict

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._is_packed = init_info["packed"]
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
        if not self._is_packed:
            for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
                tensor = torch.empty(shape, dtype=dtype, device=self._device)
                self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())
                self._model.weights[name] = tensor.cpu()
            return
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
