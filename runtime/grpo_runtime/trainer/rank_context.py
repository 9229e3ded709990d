"""What every rank has before the first step: the policy spread over the ranks, and where the run stands."""

import functools
from dataclasses import dataclass

import torch

from grpo_runtime.model.load import MODEL_DTYPES
from grpo_runtime.model.packing import can_pack
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.storage.volume_errors import volume_errors_named
from grpo_runtime.trainer.checkpoint.beginning import Beginning, find_beginning, shapes_of
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.checkpoint.reading import ReadingRank
from grpo_runtime.trainer.checkpoint.store import CHECKPOINTS, CheckpointStore
from grpo_runtime.trainer.device import gpu_memory_errors
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner, shared_state, state_after
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.reference import Reference, copy_of, make_reference
from grpo_runtime.trainer.starting_model import LoadedModel, ModelCommits
from grpo_runtime.trainer.strategy.interface import MakeStrategy, Strategy
from grpo_runtime.trainer.training_prompts import TrainingPrompts


@dataclass(frozen=True)
class RankContext:
    """`state` but for its step, and `beginning`, are known on rank 0 only."""

    settings: TrainerSettings
    ranks: Ranks
    loaded: LoadedModel
    strategy: Strategy
    learner: Learner
    reference: Reference | None
    store: CheckpointStore
    state: RunState
    beginning: Beginning
    num_own_steps: int
    """Steps that the job had made when the attempt began."""
    prompts: TrainingPrompts | None = None
    """Prompts that were counted for algorithm.epochs."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job so far, also those of earlier attempts that a checkpoint holds, but not
        those of a job that it resumed from, which may have had other GPUs."""
        return self.num_own_steps + self.learner.num_steps

    @property
    def current_step(self) -> int:
        """The step that is being made, from 1; after the last one that one."""
        return min(self.state.step + self.learner.num_steps + 1, self.settings.run_config.total_steps)


def make_rank_context(
    settings: TrainerSettings,
    loaded: LoadedModel,
    *,
    ranks: Ranks,
    make_strategy: MakeStrategy,
    device: torch.device,
    prompts: TrainingPrompts | None = None,
) -> RankContext:
    """Spread the policy over the ranks, restore the checkpoint that the attempt begins with if there is one,
    and make all ranks equal.

    Raises SupersededError when a later attempt has begun, CheckpointCorruptError and UserError as
    `find_beginning` and `Beginning` do, and StopRequestedError when a rank is asked to stop meanwhile.
    """
    run_config = settings.run_config
    store = CheckpointStore(
        settings.output_dir / CHECKPOINTS,
        job_uid=run_config.job.uid,
        attempt=settings.attempt,
        keep=run_config.checkpoint.keep,
    )
    reader = ReadingRank(ranks, run_dir=settings.run_dir)

    def begin() -> Beginning:
        with volume_errors_named(settings.output_dir):
            store.begin_attempt()
        return find_beginning(store, settings, reading=reader.reading)

    beginning = reader.read(begin) or Beginning()
    state = beginning.state
    step, num_own_steps = ranks.broadcast(torch.tensor([state.step, beginning.own_step or 0])).tolist()
    is_packed = can_pack(loaded.model)
    policy_of = functools.partial(
        Policy,
        temperature=run_config.sampling.temperature,
        dtype=run_config.model.dtype,
        is_packed=is_packed,
    )
    copied = None
    if run_config.algorithm.has_reference:
        # what follows by small parts would be rounded away
        is_rounded = run_config.algorithm.ref_sync is None
        dtype = run_config.model.dtype.value if is_rounded else MASTER_DTYPE
        copied = copy_of(loaded.model, dtype=MODEL_DTYPES[dtype])
    what = beginning.what_is_loaded
    reader.read(lambda: beginning.prepare(loaded.model, run_config=run_config), what=what)
    if ranks.rank == 0:
        ModelCommits(settings).keep(loaded.origin)
    ranks.position.at("spreads the policy over the ranks")
    shapes = shapes_of(loaded.model)
    with gpu_memory_errors(settings, num_steps=lambda: num_own_steps):
        strategy = make_strategy(
            policy_of(
                loaded.model,
                gradient_checkpointing=run_config.gradient_checkpointing,
                has_entropy_gradient=run_config.algorithm.has_entropy_bonus,
            ),
            optimizer=run_config.algorithm.optimizer,
            total_steps=run_config.total_steps,
            ranks=ranks,
            device=device,
        )
        reference = None
        if run_config.algorithm.has_reference:
            reference = make_reference(
                None if copied is None else policy_of(copied),
                model=loaded.model,
                strategy=strategy,
                sync=run_config.algorithm.ref_sync,
            )
        saved = reader.counted(
            reader.read(lambda: beginning.training_state(shapes, run_config=run_config), what=what), what=what
        )
        ranks.position.at("takes over the state of the policy")
        strategy.load(saved)
        if reference is not None and step > 0:
            reference.load(saved.reference if saved else None)
    return RankContext(
        settings=settings,
        ranks=ranks,
        loaded=loaded,
        strategy=strategy,
        learner=Learner(
            strategy,
            run_config.algorithm,
            micro_batch_tokens=run_config.micro_batch_tokens,
            ranks=ranks,
            reference=reference,
            max_completion_length=run_config.sampling.max_tokens,
            is_packed=is_packed,
            state=shared_state(
                state_after(run_config.algorithm, state.learner, is_of_other_run=beginning.other is not None),
                ranks=ranks,
            ),
        ),
        reference=reference,
        store=store,
        state=state if ranks.rank == 0 else RunState(step=step),
        beginning=beginning,
        num_own_steps=num_own_steps,
        prompts=prompts,
    )
