"""One training process: meets the others, loads the policy, conducts or follows, and says how it ended."""

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.data.source import load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.source import materialise_model
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rollout.colocated import Follower, num_colocated_engines
from grpo_runtime.rollout.interface import Engines
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.trainer.checkpoint import RunState, restore_checkpoint, share_state
from grpo_runtime.trainer.checkpoint_store import CheckpointStore
from grpo_runtime.trainer.colocation import connect_colocated, share_engine
from grpo_runtime.trainer.device import collective_backend, training_device
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.failure import leave_failure
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.loop import Conductor, follow
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.prompting import check_prompts
from grpo_runtime.trainer.saver import Saver
from grpo_runtime.trainer.scoring import Scorer, reward_functions
from grpo_runtime.trainer.stop import StopRequest
from grpo_runtime.trainer.strategy_ddp import DDPStrategy

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"

Connect = Callable[[TrainerSettings], Engines]
"""Gives rank 0 its engines; called inside its event loop."""


def connect_fleet(settings: TrainerSettings) -> Engines:
    """The engines in the rollout pods."""
    from grpo_runtime.rollout.fleet import Fleet, fleet_settings

    return Fleet(fleet_settings(settings))


def run_rank(environment: Mapping[str, str], *, run_dir: Path, connect: Connect = connect_fleet) -> NoReturn:
    """Be one training rank until the end; leaves its last words in `run_dir` and ends the process."""
    rank, local_rank = int(environment["RANK"]), int(environment["LOCAL_RANK"])
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"
    )
    disable_progress_bar()
    kept: list[object] = []
    try:
        is_done = _train(environment, run_dir=run_dir, connect=connect, kept=kept)
    except BaseException as error:
        # here, while the traceback holds what the failed frames held
        _end(leave_failure(run_dir, error, local_rank=local_rank))
    _end(ExitCode.DONE if is_done else ExitCode.TERMINATED)


def _end(code: ExitCode) -> NoReturn:
    """End the process as it stands, with nothing destroyed.

    Everything that matters is on disk. An orderly exit would wait for threads that may be stuck in a transfer
    to an engine or a rank that is gone; and torch's destructor of a gloo group waits for its threads while it
    holds the interpreter's lock, which one of them may need to let go of a tensor: then both wait for ever.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(environment: Mapping[str, str], *, run_dir: Path, connect: Connect, kept: list[object]) -> bool:
    """Train to the end; True when every step is done. `kept` outlives the call: see `_end`."""
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    settings = read_trainer_settings(environment)
    if settings.run.topology.world_size > _samples_per_step(settings):
        raise UserError(
            f"a step has {_samples_per_step(settings)} samples (promptsPerStep x groupSize) for "
            f"{settings.run.topology.world_size} training processes: give each at least one"
        )
    is_colocated = settings.run.mode == Mode.COLOCATED
    # before the ranks meet: transformers saves nothing on other ranks than 0 once they have
    origin = materialise_model(
        settings.run.model,
        hub=settings.run.hub,
        volumes_dir=settings.volumes_dir,
        into=settings.cache_dir / f"model-{environment['LOCAL_RANK']}",
    )
    device = training_device(local_rank=int(environment["LOCAL_RANK"]))
    model = load_policy(origin.folder, dtype=MASTER_DTYPE).to(device)
    tokenizer = load_tokenizer(origin.folder)
    stop = StopRequest()
    ranks = Ranks.meet(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        backend=collective_backend(device),
        stop=stop,
    )
    # only from here on is there anything to save; before, SIGTERM simply ends a rank that waits for others
    stop.listen()
    seat = _take_seat(settings, model, tokenizer, ranks=ranks)
    kept.append(seat)
    if ranks.rank == 0:
        if is_colocated:
            connect = functools.partial(connect_colocated, ranks, model_dir=origin.folder)
        is_done = asyncio.run(
            _conduct(settings, seat, kept=kept, origin=origin, run_dir=run_dir, connect=connect)
        )
    else:
        on_tick = _nothing
        if is_colocated:
            share = share_engine(settings.run, ranks, model_dir=origin.folder)
            kept.append(share)
            on_tick = Follower(share, weights=seat.learner.policy.engine_weights).check
        is_done = follow(seat.learner, ranks=ranks, step=seat.state.step, on_tick=on_tick)
    ranks.leave()
    return is_done


@dataclass(frozen=True)
class _Seat:
    """What every rank has before the first step. `state` but for its step and `resumed_from` are rank 0's."""

    ranks: Ranks
    learner: Learner
    tokenizer: PreTrainedTokenizerBase
    store: CheckpointStore
    state: RunState
    resumed_from: int | None


def _take_seat(
    settings: TrainerSettings, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, ranks: Ranks
) -> _Seat:
    """Restore the newest checkpoint, if there is one, and make all ranks equal."""
    run = settings.run
    policy = Policy(model, temperature=run.sampling.temperature, dtype=run.model.dtype)
    optimizer = PolicyOptimizer(policy, run.algorithm.optimizer, total_steps=run.algorithm.steps)
    store = CheckpointStore(
        settings.output_dir / CHECKPOINTS,
        job_uid=run.job.uid,
        attempt=settings.attempt,
        keep=run.checkpoint.keep,
    )
    state, resumed_from = RunState(), None
    if ranks.rank == 0:
        store.claim()
        if (newest := store.newest()) is not None:
            state = restore_checkpoint(newest[0], policy=policy, optimizer=optimizer)
            resumed_from = state.step
            logger.info("resuming from %s", newest[0])
    step = int(ranks.broadcast(torch.tensor(state.step)))
    share_state(policy, optimizer, ranks=ranks)
    strategy = DDPStrategy(policy, ranks=ranks)
    return _Seat(
        ranks=ranks,
        learner=Learner(strategy, optimizer, run.algorithm, ranks=ranks),
        tokenizer=tokenizer,
        store=store,
        state=state if ranks.rank == 0 else RunState(step=step),
        resumed_from=resumed_from,
    )


async def _conduct(
    settings: TrainerSettings,
    seat: _Seat,
    *,
    origin: LocalModel,
    run_dir: Path,
    connect: Connect,
    kept: list[object],
) -> bool:
    """Rank 0: bring everything together, conduct, and let go of everything."""
    run = settings.run
    prompts = load_prompts(run, volumes_dir=settings.volumes_dir)
    check_prompts(prompts, run=run, tokenizer=seat.tokenizer)
    sampler = PromptSampler(
        prompts,
        seed=run.algorithm.seed,
        is_shuffled=run.dataset.shuffle,
    )
    if seat.state.sampler is not None:
        sampler.load_state_dict(seat.state.sampler)
    saver = Saver(
        seat.store,
        learner=seat.learner,
        tokenizer=seat.tokenizer,
        output_dir=settings.output_dir,
        newest_step=seat.resumed_from,
        origin=origin,
    )
    reporter = Reporter(
        output_dir=settings.output_dir, run_dir=run_dir, job=run.job, initial=_first_progress(settings, seat)
    )
    async with RewardPool(reward_functions(run, volumes_dir=settings.volumes_dir)) as pool:
        # last, because an engine takes minutes to start, which a wrong dataset or reward should not cost
        engines = connect(settings)
        kept.append(engines)
        try:
            conductor = Conductor(
                run=run,
                attempt=settings.attempt,
                ranks=seat.ranks,
                learner=seat.learner,
                engines=engines,
                sampler=sampler,
                scorer=Scorer(pool, run, tokenizer=seat.tokenizer),
                reporter=reporter,
                saver=saver,
                tokenizer=seat.tokenizer,
            )
            is_done = await conductor.conduct(seat.state)
        finally:
            await engines.close()
    reporter.close(TrainerState.DONE if is_done else TrainerState.STOPPING)
    return is_done


def _nothing() -> None:
    """A rank without an engine has none to look after."""


def _first_progress(settings: TrainerSettings, seat: _Seat) -> Progress:
    run, step = settings.run, seat.state.step
    is_colocated = run.mode == Mode.COLOCATED
    num_engines = num_colocated_engines(run) if is_colocated else run.topology.rollout_replicas
    return Progress(
        job_uid=settings.run.job.uid,
        attempt=settings.attempt,
        state=TrainerState.WAITING_FOR_ROLLOUT,
        step=step,
        total_steps=settings.run.algorithm.steps,
        policy_version=str(PolicyVersion(attempt=settings.attempt, step=step)),
        stale_samples=seat.state.stale_samples,
        checkpoint_step=seat.resumed_from,
        resumed_from_step=seat.resumed_from,
        engines=EngineCounts(desired=num_engines),
        message="loading the weights into the engines"
        if is_colocated
        else "waiting for the first rollout engines",
    )


def _samples_per_step(settings: TrainerSettings) -> int:
    return settings.run.algorithm.prompts_per_step * settings.run.algorithm.group_size
