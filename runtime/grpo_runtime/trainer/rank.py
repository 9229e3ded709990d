"""One training process: meets the others, loads the policy, leads or follows, and leaves the cause of its
end."""

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import torch
from transformers.utils.logging import disable_progress_bar

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.engines.colocated.engine_slice import EngineSlice
from grpo_runtime.errors import PeerLostError, UserError
from grpo_runtime.model.load import MODEL_DTYPES
from grpo_runtime.model.save import files_beside_weights
from grpo_runtime.process.failure import explain_abort, write_failure
from grpo_runtime.process.lifetime import run_at_end
from grpo_runtime.report.position import OwnPosition
from grpo_runtime.rollouts.interface import Engines
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.spec_checks import check_spec
from grpo_runtime.torch_threads import pin_num_threads
from grpo_runtime.trainer.colocation import StartEngine, connect_colocated, slice_engine
from grpo_runtime.trainer.device import collective_backend, gpu_memory_errors, training_device
from grpo_runtime.trainer.distributed import Ranks, StopRequest, StopRequestedError
from grpo_runtime.trainer.following import follow
from grpo_runtime.trainer.leading import Connect, lead
from grpo_runtime.trainer.rank_context import RankContext, make_rank_context
from grpo_runtime.trainer.starting_model import LoadedModel, ModelCommits, commit_of_first_rank, load_model
from grpo_runtime.trainer.strategy.interface import MakeStrategy
from grpo_runtime.trainer.strategy.registry import strategy_of
from grpo_runtime.trainer.training_prompts import settle_total_steps

logger = logging.getLogger(__name__)

_NCCL_ABORT = (
    "the process was aborted (SIGABRT), mostly by NCCL because another rank is gone or does not answer; "
    "where no other rank failed, its own log has the cause"
)


def connect_fleet(loaded: LoadedModel, settings: TrainerSettings) -> Engines:
    """The engines in the rollout pods, which get the policy that began as `loaded`."""
    from grpo_runtime.engines.fleet.fleet import open_fleet

    beside_weights = functools.partial(
        files_beside_weights,
        loaded.model,
        tokenizer=loaded.tokenizer,
        dtype=MODEL_DTYPES[settings.run_config.model.dtype.value],
        origin=loaded.origin,
    )
    return open_fleet(settings, beside_weights=beside_weights)


def run_rank(
    environment: Mapping[str, str],
    *,
    run_dir: Path,
    connect: Connect | None = None,
    start_engine: StartEngine | None = None,
    make_strategy: MakeStrategy | None = None,
) -> NoReturn:
    """Run one training rank, and end the process; on failure the cause is in `run_dir`.

    `connect` gives rank 0 its engines in mode Disaggregated; without it they are those in the rollout pods.
    `start_engine` starts the engine of this rank in mode Colocated; without it vLLM is started.
    `make_strategy` is that of the RunConfig.
    """
    rank, local_rank = int(environment["RANK"]), int(environment["LOCAL_RANK"])
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"
    )
    disable_progress_bar()
    keep_alive: list[object] = []
    context = None
    try:
        position = OwnPosition.told_in(run_dir, local_rank=local_rank)
        context = _prepare(environment, run_dir=run_dir, make_strategy=make_strategy, position=position)
        keep_alive.append(context)
        start_slice = functools.partial(
            slice_engine,
            context.ranks,
            context.settings,
            model_dir=context.loaded.origin.folder,
            device=context.strategy.device,
            start=start_engine,
        )
        with gpu_memory_errors(context.settings, num_steps=lambda: context.num_steps):
            if rank == 0:
                connect = _connect(context, connect, start_slice=start_slice)
                is_done = asyncio.run(lead(context, run_dir=run_dir, connect=connect, keep_alive=keep_alive))
            else:
                is_done = follow(context, start_slice=start_slice, keep_alive=keep_alive)
        context.ranks.leave()
    except StopRequestedError:
        # before the first step, where nothing is to be saved
        _end(ExitCode.TERMINATED)
    except BaseException as error:
        # here, while the traceback holds what the failed frames held
        step = context.current_step if context else None
        _end(write_failure(run_dir, error, local_rank=local_rank, step=step))
    _end(ExitCode.DONE if is_done else ExitCode.TERMINATED)


def _end(code: ExitCode) -> NoReturn:
    """End the process as it stands, with nothing destroyed.

    Everything that matters is on disk. An orderly exit would wait for threads that may be blocked in a
    transfer to an engine or a rank that is gone. And torch's destructor of a gloo group waits for its threads
    while it holds the interpreter's lock, which one of them may need to release a tensor: a deadlock. So
    whatever holds a group stays referenced until here.
    """
    run_at_end()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _prepare(
    environment: Mapping[str, str],
    *,
    run_dir: Path,
    make_strategy: MakeStrategy | None,
    position: OwnPosition,
) -> RankContext:
    """Load the policy, of which only rank 0 reads the weights, and meet the other ranks."""
    rank, local_rank = int(environment["RANK"]), int(environment["LOCAL_RANK"])
    settings = read_trainer_settings(environment)
    # the order of sums, and so the last bits of a run, depends on it
    pin_num_threads(settings.run_config.threads_per_process)
    _require_samples_for_all(settings)
    check_spec(rewards=settings.run_config.rewards, sampling=settings.run_config.sampling)
    device = training_device(local_rank=local_rank)
    logger.info("training on %s, CPU threads: %d", device, torch.get_num_threads())
    commits = ModelCommits(settings)
    load = functools.partial(
        load_model, commits, into=settings.cache_dir / f"model-{local_rank}", is_first=rank == 0
    )
    position.at("loads the model")
    # before the ranks meet: transformers saves nothing on other ranks than 0 once they have
    loaded = load(commit=commits.kept())
    if device.type == "cuda" and int(environment["WORLD_SIZE"]) > 1:
        explain_abort(run_dir, PeerLostError(_NCCL_ABORT), local_rank=local_rank)
    stop = StopRequest()
    position.at("waits for the other ranks to start")
    ranks = Ranks.meet(
        rank=rank,
        world_size=int(environment["WORLD_SIZE"]),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        backend=collective_backend(device),
        stop=stop,
        position=position,
    )
    commit = commit_of_first_rank(loaded.origin.commit, ranks=ranks)
    position.at("loads the model")
    if commit != loaded.origin.commit:
        loaded = load(commit=commit)
    # only from here on is there anything to save; before, SIGTERM simply ends a rank that waits for others
    stop.listen()
    settings, prompts = settle_total_steps(
        settings, ranks=ranks, decoder=loaded.decoder, vocab_size=loaded.vocab_size
    )
    return make_rank_context(
        settings,
        loaded,
        ranks=ranks,
        make_strategy=make_strategy or strategy_of(settings.run_config),
        device=device,
        prompts=prompts,
    )


def _connect(
    context: RankContext, connect_pods: Connect | None, *, start_slice: Callable[[], EngineSlice]
) -> Connect:
    """The connection of rank 0 to its engines."""
    if context.settings.run_config.mode is Mode.COLOCATED:
        return functools.partial(connect_colocated, ranks=context.ranks, start_slice=start_slice)
    return connect_pods or functools.partial(connect_fleet, context.loaded)


def _require_samples_for_all(settings: TrainerSettings) -> None:
    algorithm, num_ranks = settings.run_config.algorithm, settings.run_config.topology.world_size
    num_samples = algorithm.prompts_per_step * algorithm.group_size
    if num_ranks > num_samples:
        raise UserError(
            f"a step has {num_samples} samples (promptsPerStep x groupSize) for "
            f"{num_ranks} training processes: give each at least one"
        )
