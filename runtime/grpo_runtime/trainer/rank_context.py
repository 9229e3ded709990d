"""What every rank has before the first step: the policy spread over the ranks, and where the run stands."""

import functools
import logging
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.adapter_files import require_same_adapter
from grpo_runtime.model.load import DTYPES
from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.packing import can_pack
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.checkpoint.contents import RunState, read_run_state, read_training_state
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.checkpoint.written_share import MODEL
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.gpu_memory import gpu_memory_errors
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.learner_state import first_state, shared_state
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.reference import Reference, copy_of, make_reference
from grpo_runtime.trainer.strategy.interface import MakeStrategy, Strategy
from grpo_runtime.trainer.training_prompts import TrainingPrompts

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class LoadedModel:
    """The policy to start from: the model has its weights on rank 0, in CPU memory, and is on the meta device
    elsewhere."""

    origin: LocalModel
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class RankContext:
    """`state` but for its step, and `resumed_from`, are known on rank 0 only."""

    settings: TrainerSettings
    ranks: Ranks
    loaded: LoadedModel
    strategy: Strategy
    learner: Learner
    reference: Reference | None
    store: CheckpointStore
    state: RunState
    resumed_from: int | None
    prompts: TrainingPrompts | None = None
    """Those that were counted for algorithm.epochs."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the job so far, also those of earlier attempts that a checkpoint holds."""
        return self.state.step + self.learner.num_steps


def make_rank_context(
    settings: TrainerSettings,
    loaded: LoadedModel,
    *,
    ranks: Ranks,
    make_strategy: MakeStrategy,
    device: torch.device,
    prompts: TrainingPrompts | None = None,
) -> RankContext:
    """Spread the policy over the ranks, restore the newest checkpoint if there is one, and make all ranks
    equal.

    Raises SupersededError when a later attempt has begun, and CheckpointCorruptError and UserError as
    `CheckpointStore.newest` does.
    """
    run_config = settings.run_config
    store = CheckpointStore(
        settings.output_dir / CHECKPOINTS,
        job_uid=run_config.job.uid,
        attempt=settings.attempt,
        keep=run_config.checkpoint.keep,
    )
    checkpoint = None
    if ranks.rank == 0:
        store.begin_attempt()
        checkpoint = store.newest()
    state = read_run_state(checkpoint[0]) if checkpoint else RunState()
    step = int(ranks.broadcast(torch.tensor(state.step)))
    is_packed = can_pack(loaded.model)
    policy_of = functools.partial(
        Policy,
        temperature=run_config.sampling.temperature,
        dtype=run_config.chosen_dtype,
        is_packed=is_packed,
    )
    copied = None
    if run_config.algorithm.has_reference:
        # what follows by small parts would be rounded away
        is_rounded = run_config.algorithm.ref_sync is None
        dtype = run_config.chosen_dtype.value if is_rounded else MASTER_DTYPE
        copied = copy_of(loaded.model, dtype=DTYPES[dtype])
    if checkpoint:
        logger.info("resuming from %s", checkpoint[0])
        require_same_adapter(loaded.model, folder=checkpoint[0] / MODEL)
    with gpu_memory_errors(settings, num_steps=lambda: step):
        strategy = make_strategy(
            policy_of(
                loaded.model,
                gradient_checkpointing=bool(run_config.gradient_checkpointing),
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
        saved = read_training_state(checkpoint[0]) if checkpoint else None
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
            micro_batch_tokens=run_config.chosen_micro_batch_tokens,
            ranks=ranks,
            reference=reference,
            max_completion_length=run_config.sampling.max_tokens,
            is_packed=is_packed,
            state=shared_state(replace(first_state(run_config.algorithm), **state.learner), ranks=ranks),
        ),
        reference=reference,
        store=store,
        state=state if ranks.rank == 0 else RunState(step=step),
        resumed_from=state.step if checkpoint else None,
        prompts=prompts,
    )
