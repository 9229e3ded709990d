"""A transfer engine of vLLM that a test brings, as a user's image may: both of its halves, over TCP sockets.

Like NCCL it waits for the other end without a deadline, and does not notice that it is gone. It sends each
transfer in two parts, of which the second names what each worker is told. `register` gives both halves to
vLLM's factories; `SocketEnd` is what a worker without vLLM has of it.
"""

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn, Protocol

import torch

NAME = "socket"


class SocketEnd:
    """The end in a worker."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def connect(self, address: str, port: int) -> None:
        self.close()
        self._socket = socket.create_connection((address, port))
        # until all members are there
        self._receive_into(memoryview(bytearray(1)))

    def tensors(self, told: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that an update tells of, in memory of their own."""
        for name, dtype, shape in zip(told["names"], told["dtype_names"], told["shapes"], strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._receive_into(tensor.view(-1).view(torch.uint8).numpy().data)
            yield name, tensor

    def close(self) -> None:
        found, self._socket = self._socket, None
        if found is not None:
            found.close()

    def _receive_into(self, memory: memoryview) -> None:
        assert self._socket is not None
        num_received = 0
        while num_received < len(memory):
            num = self._socket.recv_into(memory[num_received:])
            if num == 0:
                wait_without_a_deadline()
            num_received += num


def wait_without_a_deadline() -> NoReturn:
    """As NCCL, which does not notice that the other end is gone."""
    while True:
        threading.Event().wait()


class ModelOfWorker(Protocol):
    """What is served."""

    weights: dict[str, torch.Tensor]


class EngineWithoutVllm:
    """The engine's half in a worker without vLLM; see `VllmTransferEngine`."""

    def __init__(self, model: ModelOfWorker) -> None:
        self._model = model
        self._end = SocketEnd()

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        return init_dict

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        try:
            self._end.connect(**init_info)
        except OSError as error:
            raise RuntimeError(f"the trainer is not there: {error}") from error

    def start_weight_update(self) -> None:
        # vLLM's take the layers apart: there is nothing to serve
        self._model.weights = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._model.weights.update(self._end.tensors(update_info))

    def finish_weight_update(self) -> None:
        return

    def shutdown(self) -> None:
        self._end.close()


@cache
def trainer_half() -> Any:
    """The trainer's half. vLLM is imported here, because most processes of the tests do without it."""
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

    @dataclass
    class SocketTrainerInitInfo(TrainerInitInfo):
        backend: ClassVar[str] = NAME
        world_size: int
        master_address: str

    class SocketTrainer(TrainerWeightTransferEngine[SocketTrainerInitInfo]):
        init_info_cls = SocketTrainerInitInfo

        @classmethod
        def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> "SocketTrainer":
            half = cls(client=client, source=source)
            # what it may want to know before there is anything to send
            assert source.metadata()
            half.peers = []
            with (
                socket.create_server((init_info.master_address, 0)) as server,
                ThreadPoolExecutor(max_workers=1) as beside,
            ):
                told = {"address": init_info.master_address, "port": server.getsockname()[1]}
                answer = beside.submit(client.init_weight_transfer_engine, told)
                for _ in range(1, init_info.world_size):
                    half.peers.append(server.accept()[0])
                for peer in half.peers:
                    peer.sendall(bytes(1))
                answer.result()
            return half

        def send_weights(self) -> None:
            described = [
                {
                    "name": meta.name,
                    "dtype": str(meta.dtype).removeprefix("torch."),
                    "shape": list(meta.shape),
                }
                for meta in self.source.metadata()
            ]
            tensors = iter(self.source)
            self.client.start_weight_update()
            middle = len(described) // 2
            self._send(told_of(described[:middle]), tensors, num_tensors=middle)
            rest = told_of(described[middle:])
            self._send([rest] * len(self.peers), tensors, num_tensors=len(described) - middle)
            assert next(tensors, None) is None
            self.client.finish_weight_update()

        def _send(self, told: Any, tensors: Any, *, num_tensors: int) -> None:
            beside = ThreadPoolExecutor(max_workers=1)
            try:
                answer = beside.submit(self.client.update_weights, told)
                for _ in range(num_tensors):
                    _, tensor = next(tensors)
                    for peer in self.peers:
                        peer.sendall(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
                answer.result()
            finally:
                beside.shutdown(wait=False)

        def shutdown(self) -> None:
            for peer in self.peers:
                peer.close()

    return SocketTrainer


def told_of(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "names": [one["name"] for one in described],
        "dtype_names": [one["dtype"] for one in described],
        "shapes": [one["shape"] for one in described],
    }


def register() -> None:
    """Give both halves to vLLM's factories, as a plugin of it does."""
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    @dataclass
    class SocketInitInfo(WeightTransferInitInfo):
        address: str
        port: int

    @dataclass
    class SocketUpdateInfo(WeightTransferUpdateInfo):
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]

    class SocketEngine(WeightTransferEngine[SocketInitInfo, SocketUpdateInfo]):
        init_info_cls = SocketInitInfo
        update_info_cls = SocketUpdateInfo

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._end = SocketEnd()

        def init_transfer_engine(self, init_info: SocketInitInfo) -> None:
            self._end.connect(init_info.address, init_info.port)

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            # without what vLLM's does then: wait for a GPU
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: SocketUpdateInfo) -> None:
            self.model.load_weights(self._end.tensors(vars(update_info)))  # type: ignore[operator]

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            self._end.close()

    WeightTransferEngineFactory.register_engine(NAME, SocketEngine)
    WeightTransferTrainerFactory.register_engine(NAME, trainer_half())
