"""What an attempt begins with: a checkpoint of its own run, or of another one, or nothing."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import ResumeLoad
from grpo_runtime.errors import UserError
from grpo_runtime.model.lora import has_adapter, is_adapter_folder, require_same_adapter
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.checkpoint.contents import (
    RunState,
    read_run_state,
    read_training_state,
    read_weights,
)
from grpo_runtime.trainer.checkpoint.other_run import OtherCheckpoint, find_other_checkpoint
from grpo_runtime.trainer.checkpoint.reading import ReadProgress
from grpo_runtime.trainer.checkpoint.shard import MODEL
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.strategy.interface import TrainingState

logger = logging.getLogger(__name__)

_COMPARED = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""What two models must share, by the names of their configurations, for weights to mean the same in both. The
shapes of the weights do not show all of it."""


@dataclass(frozen=True)
class Beginning:
    """What an attempt begins with, as rank 0 knows it; by default nothing, as on all other ranks."""

    folder: Path | None = None
    """A whole checkpoint."""
    state: RunState = field(default_factory=RunState)
    other: OtherCheckpoint | None = None
    """The checkpoint of another run, if it is not of this one."""
    set_aside: tuple[str, ...] = ()
    """Newer checkpoints of this run that are damaged."""

    @property
    def own_step(self) -> int | None:
        """Step of the checkpoint, if it is one of this run."""
        return self.state.step if self.folder is not None and self.other is None else None

    @property
    def resumed_step(self) -> int | None:
        """The step after which the attempt continues; None where it begins at step 0."""
        return self.state.step or None if self.other else self.own_step

    @property
    def loaded_step(self) -> int | None:
        """Step of the checkpoint, if it is one of another run."""
        return self.other.manifest.step if self.other else None

    @property
    def what_is_loaded(self) -> str:
        """What is read of the checkpoint, for people."""
        step = self.state.step if self.other is None else self.other.manifest.step
        return f"loading the checkpoint of step {step}"

    @property
    def what_was_set_aside(self) -> str | None:
        """Which newer checkpoints are damaged, for people; None where none is."""
        if not self.set_aside:
            return None
        return (
            f"damaged checkpoints were put aside: {', '.join(self.set_aside)}; the attempt continues from "
            f"that of step {self.own_step}"
        )

    @property
    def _is_weights_alone(self) -> bool:
        return self.other is not None and self.other.load is ResumeLoad.WEIGHTS

    def prepare(self, model: PreTrainedModel, *, run_config: RunConfig) -> None:
        """Before the policy is spread over the ranks: copy weights that are taken alone into `model`, the one
        of rank 0. Raises UserError when the checkpoint is not one of such a model."""
        if self.folder is None:
            return
        logger.info("resuming from %s", self.folder)
        require_same_adapter(model, folder=self.folder / MODEL)
        if self.other is None:
            return
        _require_same_model(model, folder=self.folder / MODEL)
        if not self._is_weights_alone:
            _require_steps_left(self.state, run_config)
            return
        weights = read_weights(self.folder)
        _require_same_tensors(weights, shapes_of(model))
        with torch.no_grad():
            for name, parameter in _saved_parameters(model).items():
                parameter.copy_(weights[name])

    def training_state(
        self, shapes: Mapping[str, torch.Size], *, run_config: RunConfig
    ) -> TrainingState | None:
        """The tensors that the strategy takes over; None where it continues from what the model has.

        `shapes` are `shapes_of` the model before it was spread. Raises UserError when tensors of another run
        do not fit them.
        """
        if self.folder is None or self._is_weights_alone:
            return None
        saved = read_training_state(self.folder)
        if self.other is not None:
            _require_same_tensors(saved.model, shapes)
            if run_config.algorithm.ref_sync is not None and not saved.reference:
                raise UserError(
                    "resumeFrom: the checkpoint has no reference policy, because its run had no "
                    "algorithm.kl.refSync: remove it here too, or set resumeFrom.load to Weights"
                )
        return saved


def find_beginning(store: CheckpointStore, settings: TrainerSettings, *, reading: ReadProgress) -> Beginning:
    """The newest checkpoint of the run, or else the one of another run that `resumeFrom` names. `reading`
    reports meanwhile how much has been read.

    Raises what `CheckpointStore.newest` and `find_other_checkpoint` do.
    """
    own = store.newest(saved_step=settings.checkpoint_step, reading=reading)
    if own is not None:
        return Beginning(own[0], read_run_state(own[0]), set_aside=tuple(store.set_aside))
    resume = settings.run_config.resume_from
    if resume is None:
        return Beginning()
    other = find_other_checkpoint(
        resume, volumes_dir=settings.volumes_dir, output_dir=settings.output_dir, reading=reading
    )
    return Beginning(other.folder, state_from(other), other)


def state_from(other: OtherCheckpoint) -> RunState:
    """Where a run stands that begins with the checkpoint of another one. It may have other rewards, so steps
    that teach nothing are counted anew."""
    if other.load is ResumeLoad.WEIGHTS:
        return RunState()
    return replace(read_run_state(other.folder), without_signal={})


def shapes_of(model: PreTrainedModel) -> dict[str, torch.Size]:
    """The shapes of the tensors that a checkpoint of `model` has, by name."""
    return {name: tensor.shape for name, tensor in _saved_parameters(model).items()}


def _saved_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The same as `Policy.saved_parameters`, of a model that is no policy yet."""
    found = dict(model.named_parameters())
    if has_adapter(model):
        return {name: tensor for name, tensor in found.items() if tensor.requires_grad}
    return found


def _require_same_model(model: PreTrainedModel, *, folder: Path) -> None:
    """An adapter names its model itself."""
    if is_adapter_folder(folder):
        return
    try:
        saved = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"resumeFrom: the model of the checkpoint cannot be read: {error}") from error
    theirs, own = saved.get_text_config(), model.config.get_text_config()
    for name in _COMPARED:
        had, has = getattr(theirs, name, None), getattr(own, name, None)
        if had != has:
            raise UserError(
                f"resumeFrom: the checkpoint is of a model with {name} {had}, and model.source has {has}: "
                "name the model that the checkpoint was trained from in model.source, or another checkpoint"
            )


def _require_same_tensors(saved: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]) -> None:
    for name in sorted(saved.keys() | shapes.keys()):
        had = tuple(saved[name].shape) if name in saved else "nothing"
        has = tuple(shapes[name]) if name in shapes else "nothing"
        if had != has:
            raise UserError(
                f"resumeFrom: the checkpoint has {had} for {name}, and the model of this job {has}: name the "
                "model that the checkpoint was trained from in model.source, or another checkpoint"
            )


def _require_steps_left(state: RunState, run_config: RunConfig) -> None:
    if state.step >= run_config.total_steps:
        raise UserError(
            f"resumeFrom: the checkpoint is of step {state.step}, and this job ends at step "
            f"{run_config.total_steps}, because algorithm.steps counts those of the other job too: raise it, "
            "or set resumeFrom.load to Weights"
        )
