"""Mode Colocated: starts an engine in each training rank, or in a process beside it, of its own or of Ray."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.colocated.child_engine import ChildEngine
from grpo_runtime.engines.colocated.child_liveness import ChildLimits
from grpo_runtime.engines.colocated.engine_process import (
    VISIBLE_DEVICES,
    StartProcess,
    child_environment,
    spawned,
)
from grpo_runtime.engines.colocated.engine_slice import EngineOfRank, EngineSlice, engine_name
from grpo_runtime.engines.colocated.engines import ColocatedEngines
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.engines.colocated.rank_messages import Channel
from grpo_runtime.engines.colocated.ray.cluster import RayMember, join_ray
from grpo_runtime.engines.colocated.ray.layout import RayShape
from grpo_runtime.engines.colocated.ray.node_folder import ray_token
from grpo_runtime.engines.colocated.ray.rank_end import actor_of
from grpo_runtime.engines.colocated.recovering_engine import RecoveringEngine
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.rollouts.interface import Engines
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.torch_threads import num_engine_threads
from grpo_runtime.trainer.device import release_cached_memory, use_device
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.weight_sync.backend_of_run import find_usable_backend

StartEngine = Callable[[TrainerSettings], EngineOfRank]
"""Starts the engine of a rank, or its part of one."""

_CHILD = (sys.executable, "-m", "grpo_runtime.engines.colocated.engine_child")


def slice_engine(
    ranks: Ranks,
    settings: TrainerSettings,
    *,
    model_dir: Path,
    device: torch.device,
    start: StartEngine | None = None,
) -> EngineSlice:
    """Start this rank's engine, or its part of one: by `start`, or else as `engine.process` says. All ranks
    call this at the same time, and none of them meets the others meanwhile, because vLLM makes process groups
    of its own among them. `device` is this rank's.

    The policy and its optimizer are on the device: what they leave free is what the engine can have.

    Raises UserError naming the argument when vLLM refuses `engine.args`, and as `find_usable_backend` and
    `fraction_of_gpu` do.
    """
    channel, run_config = ranks.open_channel(), settings.run_config
    release_memory = functools.partial(release_cached_memory, device)
    name = engine_name(ranks.rank // run_config.engine.tensor_parallel_size)
    if start is not None:
        engine = start(settings)
    elif run_config.engine_has_own_process:
        start_process = _actor(settings, channel) if run_config.is_on_ray else spawned(_CHILD, _environment())
        engine = _start_beside(
            run_config, start_process, model_dir=model_dir, name=name, release_memory=release_memory
        )
    else:
        engine = _start_within(run_config, model_dir=model_dir, name=name, release_memory=release_memory)
    engine_slice = EngineSlice(
        engine,
        channel,
        ranks_per_engine=run_config.engine.tensor_parallel_size,
        enter_thread=functools.partial(use_device, device),
    )
    ranks.report_engine_state(
        num_finished=engine_slice.num_finished, is_starting_again=engine_slice.is_starting_again
    )
    return engine_slice


def connect_colocated(
    settings: TrainerSettings, *, ranks: Ranks, start_slice: Callable[[], EngineSlice]
) -> Engines:
    """The engines of all ranks, as rank 0 uses them. `start_slice` is `slice_engine` of this rank; the other
    ranks call theirs meanwhile."""
    engine_slice = start_slice()
    return ColocatedEngines(
        engine_slice,
        sync_timeout_seconds=settings.run_config.weight_sync.timeout_seconds,
        num_finished=lambda: ranks.num_finished,
        is_starting_again=lambda: ranks.is_starting_again,
    )


def _start_within(
    run_config: RunConfig, *, model_dir: Path, name: str, release_memory: Callable[[], None]
) -> EngineOfRank:
    """The engine in this process."""
    kind = engine_kind()
    kind.import_colocated()
    backend = find_usable_backend(run_config)
    release_memory()
    return RankEngine(
        kind.make_colocated(run_config, model_dir=model_dir, name=name),
        backend=backend,
        sleep_level=run_config.engine.sleep_level,
        timeout_seconds=run_config.weight_sync.timeout_seconds,
        num_threads=num_engine_threads(run_config),
        release_memory=release_memory,
    )


def _start_beside(
    run_config: RunConfig,
    start_process: StartProcess,
    *,
    model_dir: Path,
    name: str,
    release_memory: Callable[[], None],
) -> EngineOfRank:
    """The engine in a process of its own, now and whenever it is lost."""
    timeout_seconds = run_config.weight_sync.timeout_seconds
    limits = ChildLimits(call_seconds=timeout_seconds)
    message = {
        "run_config": run_config.model_dump_json(by_alias=True),
        "model_dir": str(model_dir),
        "name": name,
    }
    return RecoveringEngine(
        lambda: ChildEngine(start_process, message=message, limits=limits),
        backend=find_usable_backend(run_config),
        sleep_level=run_config.engine.sleep_level,
        timeout_seconds=timeout_seconds,
        release_memory=release_memory,
    )


def _actor(settings: TrainerSettings, channel: Channel) -> StartProcess:
    """An actor of Ray, which all ranks bring up first."""
    topology = settings.run_config.topology
    assert settings.tokens is not None
    environment = _environment()
    member = RayMember(
        shape=RayShape(
            num_pods=topology.num_nodes,
            ranks_per_pod=topology.processes_per_node,
            has_gpus=torch.cuda.is_available(),
        ),
        run_dir=settings.run_dir,
        master_addr=settings.master_addr,
        token=ray_token(settings.tokens.admin, attempt=settings.attempt),
    )
    # Ray sees all GPUs of the pod
    of_pod = {name: value for name, value in environment.items() if name != VISIBLE_DEVICES}
    if VISIBLE_DEVICES in os.environ:
        of_pod[VISIBLE_DEVICES] = os.environ[VISIBLE_DEVICES]
    folder = join_ray(member, channel, environment=of_pod)
    return actor_of(channel.rank, folder=folder, environment=environment)


def _environment() -> dict[str, str]:
    """Environment of an engine in a process of its own."""
    return child_environment(
        os.environ,
        of_engine=engine_kind().colocated_environment(),
        device_index=torch.cuda.current_device() if torch.cuda.is_available() else None,
    )
