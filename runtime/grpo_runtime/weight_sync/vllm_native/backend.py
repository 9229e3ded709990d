"""The backend of a transfer engine of vLLM. Nothing of vLLM is imported before a trainer's half is needed."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from grpo_runtime.errors import UserError
from grpo_runtime.settings import TrainerSettings, read_rollout_settings
from grpo_runtime.weight_sync.interface import (
    Backend,
    ModelFiles,
    Peer,
    Reach,
    ReceiverSettings,
    SenderSettings,
)
from grpo_runtime.weight_sync.receiver import end_engine
from grpo_runtime.weight_sync.sender import PairwiseSender
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.stream.host_copy import HostCopy, device_copy
from grpo_runtime.weight_sync.stream.manifest import WeightManifest
from grpo_runtime.weight_sync.stream.memory import FindGpu, gpu_of_rank
from grpo_runtime.weight_sync.vllm_native.receiver import NCCL, VllmNativeReceiver

if TYPE_CHECKING:
    from grpo_runtime.weight_sync.vllm_native.trainer_half import Half


def engine_of_run() -> str:
    """The name of the engine, in any process of a rollout pod. Raises UserError as `read_rollout_settings`
    does."""
    return read_rollout_settings(os.environ).run_config.weight_sync.vllm_engine_name


def vllm_native_backend(
    name: str,
    *,
    engine: Callable[[], str] = engine_of_run,
    half: "Callable[[], Half] | None" = None,
    rank_gpu: FindGpu = gpu_of_rank,
) -> Backend[HostCopy]:
    """Transfer engines of vLLM, each connected to the trainer by itself. `engine` gives the name of their
    half in a worker, and `half` the trainer's: without it only the end in a worker can be made."""
    manifests: list[WeightManifest] = []
    packing_gpu = cache(rank_gpu)

    def prepare(source: WeightSource) -> HostCopy:
        device = packing_gpu()
        copy = HostCopy(source) if device is None else device_copy(source, device)
        # what a half may want to know before it has weights to send
        manifests[:] = [copy.manifest]
        return copy

    def make_sender(engines: Mapping[str, Peer], settings: SenderSettings) -> PairwiseSender[HostCopy]:
        from grpo_runtime.weight_sync.vllm_native.sender import VllmNativeConnection

        if half is None:
            raise ValueError(f"{name} weight sync is that of a run: it must know the trainer's half")
        connections = {
            # each with a device, and so a stream, of its own: no engine holds up another
            engine_name: VllmNativeConnection(
                peer, settings, half=half(), manifest=lambda: manifests[0], device=rank_gpu()
            )
            for engine_name, peer in engines.items()
        }
        return PairwiseSender(connections, settings)

    def for_run(settings: TrainerSettings, model_files: ModelFiles) -> Backend[HostCopy]:
        chosen = settings.run_config.weight_sync.vllm_engine_name
        try:
            from grpo_runtime.weight_sync.vllm_native.trainer_half import find_half
        except ImportError as error:
            raise UserError(
                f"weightSync.backend VllmNative needs vLLM in the trainer image: {error}"
            ) from error

        found = find_half(chosen)
        return vllm_native_backend(name, engine=lambda: chosen, half=lambda: found, rank_gpu=rank_gpu)

    def make_receiver(settings: ReceiverSettings) -> VllmNativeReceiver:
        return VllmNativeReceiver(settings, engine=engine(), end_engine=end_engine)

    return Backend[HostCopy](
        name=name,
        reach=Reach.NETWORK,
        prepare=prepare,
        make_sender=make_sender,
        make_receiver=make_receiver,
        needs_gpu_in=lambda run: run.weight_sync.vllm_engine_name == NCCL,
        for_run=for_run,
    )
