"""vLLM's weight transfer engine in each worker: takes what any backend delivers and applies it in `finish`.

vLLM's own transfer engines write into the model while bytes arrive, so a transfer that breaks leaves a model
that kills the server at the next request. This one leaves the model alone until all that can be checked is
checked. Without the memory for that, it too writes into the model, and ends its process when the transfer
breaks, and the engine with it: it is started again and gets the weights as a new one. So it is where a job
asks for an engine of vLLM by name, to which the receiver then passes everything (`vllm_native`).

A worker receives in a call, which blocks its engine, or in a thread beside the engine's steps, where the
update says so (`extension`). What follows an update waits for that thread.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from grpo_runtime.process.background import in_thread
from grpo_runtime.process.free_memory import free_memory
from grpo_runtime.weight_sync.engine_names import backend_of
from grpo_runtime.weight_sync.interface import (
    DirectLoad,
    ModelBrokenError,
    NeedsPauseError,
    Reach,
    ReceiverSettings,
    VllmTransferEngine,
    WeightSyncError,
)
from grpo_runtime.weight_sync.receiver import end_engine
from grpo_runtime.weight_sync.registry import find_backend
from grpo_runtime.weight_sync.worker.extension import BESIDE

KEPT_FREE_BYTES = 512 * 1024 * 1024
"""Not taken for staged weights: loading them needs some memory too, and so do requests."""
TIED_HEAD = "lm_head.weight"
_LAYERWISE_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


class InitInfo(WeightTransferInitInfo):
    """What a sender wrote for its receiver; the backend parses it."""

    def __init__(self, **info: Any) -> None:
        self.info = info


class TransferUpdateInfo(WeightTransferUpdateInfo):
    """What came with an update; the receiver parses it."""

    def __init__(self, **info: Any) -> None:
        self.info = info


class StagedWeightTransferEngine(WeightTransferEngine[InitInfo, TransferUpdateInfo]):
    """vLLM's four phases over the Receiver of the backend that is named in the engine's weight transfer
    config."""

    init_info_cls = InitInfo
    update_info_cls = TransferUpdateInfo
    supports_draft_weight_update = False

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        backend = find_backend(backend_of(config.backend))
        self._is_in_rank = backend.reach is Reach.PROCESS
        parallel, workers = self.parallel_config, get_world_group()
        num_known = (
            parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.data_parallel_size
        )
        # in the ranks of a trainer the world is that of all ranks, with their engines
        num_met = num_known if self._is_in_rank else workers.world_size
        if (parallel.world_size_across_dp, num_met) != (num_known, num_known):
            raise WeightSyncError(
                "weight sync serves engines of tensor times pipeline times data parallel size workers "
                f"({num_known}) that know each other, and this one has {num_met}: remove other parallel "
                "arguments"
            )
        # it warns at every sync about tables that no checkpoint holds; finish checks all parameters itself
        logging.getLogger(_LAYERWISE_LOGGER).setLevel(logging.ERROR)
        self._shares_gpu = backend.reach is Reach.MACHINE and device.type == "cuda"
        self._is_tied = bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))
        self._receiving: Future[None] | None = None
        """The update that is received beside the engine's steps."""
        self._received_as = ""
        self._receiver = backend.make_receiver(
            ReceiverSettings(
                layout=checkpoint_shapes(Path(self.model_config.model)),
                optional=frozenset({TIED_HEAD}) if self._is_tied else frozenset(),
                device=device,
                # counted through all cores
                worker=workers.rank_in_group,
                direct_load=DirectLoad(self._may_stage, self._load),
                vllm_engine=self._engine_of_vllm,
            )
        )

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connect to a trainer, letting go of the one before."""
        self._wait_for_reception()
        with _ending_with_a_broken_model():
            self._receiver.init(init_info.info)

    def start_weight_update(self) -> None:
        """Open an update; the model stays as it is."""
        self._wait_for_reception()
        with _ending_with_a_broken_model():
            self._receiver.start()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and check a whole transfer. vLLM ends the update when this raises.

        With a name as BESIDE in `update_info` this begins to receive in a thread, which is then the
        `reception` of that name.
        """
        self._wait_for_reception()
        info = dict(update_info)
        self._received_as = info.pop(BESIDE, "")
        if self._received_as:
            self._receiving = in_thread(lambda: self._receive(info), name="weight-receiver")
        else:
            self._receive(info)

    def receive_weights(self, update_info: TransferUpdateInfo) -> None:
        """The part of `update_weights` that vLLM asks an engine to have."""
        self.update_weights(update_info.info)

    def reception(self, name: str) -> Future[None]:
        """The update of that name that is received in a thread; its error is what `update_weights` would have
        raised. Raises WeightSyncError when another update has begun since."""
        if name != self._received_as or self._receiving is None:
            raise WeightSyncError("another weight update has begun")
        return self._receiving

    def finish_weight_update(self) -> None:
        """Load what was delivered. Raises WeightSyncError, with the model untouched, when nothing was."""
        self._wait_for_reception()
        with _ending_with_a_broken_model():
            weights = self._receiver.take()
            if weights is None:
                return
            self._load(weights)
        if self._shares_gpu:
            # the trainer needs what the weights were staged in
            del weights
            torch.cuda.empty_cache()

    def shutdown(self) -> None:
        """Let go of the trainer."""
        self._wait_for_reception()
        self._receiver.shutdown()

    def has_room(self, num_bytes: int) -> bool:
        """Whether weights of this size can be staged beside the model, by each worker of this container at
        the same time."""
        parallel = self.parallel_config
        needed = num_bytes * parallel.local_world_size * parallel.data_parallel_size_local
        return num_bytes == 0 or needed + KEPT_FREE_BYTES <= free_memory()

    def _receive(self, info: dict[str, Any]) -> None:
        if self.device.type == "cuda":
            # that of a thread is another one at first
            torch.cuda.set_device(self.device)
        with _ending_with_a_broken_model():
            self._receiver.update(info)

    def _wait_for_reception(self) -> None:
        """Nothing touches the receiver while a thread receives: one whose sender is gone ends at its stall
        time. What became of it is dropped."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            wait((receiving,))

    def _may_stage(self, num_bytes: int) -> bool:
        has_room = self.has_room(num_bytes)
        if not has_room and self._received_as:
            raise NeedsPauseError(f"it has no memory for {num_bytes} bytes beside its model")
        return has_room

    def _engine_of_vllm(self, name: str) -> VllmTransferEngine:
        """vLLM's own engine of that name, for the same model."""
        config = WeightTransferConfig(backend=name)
        return WeightTransferEngineFactory.create_engine(config, self.vllm_config, self.device, self.model)

    @torch.no_grad()
    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Load `weights` layer by layer. Raises ModelBrokenError when that fails: vLLM keeps what came of a
        layer, and would mix it with the next weights."""
        try:
            self._let_experts_be_packed()
            initialize_layerwise_reload(self.model)
            loaded = self.model.load_weights(weights)  # type: ignore[operator] # a method of every vLLM model
            finalize_layerwise_reload(self.model, self.model_config)
            self._repack_tied_head()
        except Exception as error:
            if self._is_in_rank:
                # the rank says why it ends
                raise
            raise ModelBrokenError(f"weights could not be loaded: {error}") from error
        left_out = {name for name, _ in self.model.named_parameters()} - set(loaded or ())
        if self._is_tied:
            # of a model that takes pictures too it is in the part that reads text
            left_out = {name for name in left_out if not name.endswith(TIED_HEAD)}
        if loaded is not None and left_out:
            raise WeightSyncError(f"vLLM kept the old {', '.join(sorted(left_out)[:5])}")

    def _let_experts_be_packed(self) -> None:
        """On CPU vLLM packs the experts of a layer when it makes their kernel, and only then."""
        if self.device.type != "cpu":
            return
        for module in self.model.modules():
            method = getattr(module, "quant_method", None)
            if isinstance(method, UnquantizedFusedMoEMethod):
                method.moe_kernel = None

    def _repack_tied_head(self) -> None:
        """On CPU vLLM packs lm_head once, and a tied head is a copy of the embedding as it was then."""
        text: torch.nn.Module = getattr(self.model, "get_language_model", lambda: self.model)()
        head = getattr(text, "lm_head", None)
        if not isinstance(head, torch.nn.Module) or not hasattr(head, "weight"):
            return
        if self.device.type == "cpu" and self._is_tied:
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


@contextmanager
def _ending_with_a_broken_model() -> Iterator[None]:
    """End the engine when its model can be neither served nor mended."""
    try:
        yield
    except ModelBrokenError as error:
        end_engine(str(error))


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the *.safetensors files of `folder`.

    Raises FileNotFoundError when there is none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no *.safetensors file")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with safe_open(path, framework="numpy") as reader:
            for name in reader.keys():  # noqa: SIM118 - not a mapping
                shapes[name] = tuple(reader.get_slice(name).get_shape())
    return shapes
