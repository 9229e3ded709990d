"""What is kept: checkpoints while training, the model at the end. Rank 0 only."""

import logging
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.storage.full_volume import full_volume_named
from grpo_runtime.trainer.checkpoint.contents import RunState, export_model, write_checkpoint
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.strategy.interface import Strategy

logger = logging.getLogger(__name__)

MODEL_FOLDER = "model"


class Saver:
    """Saves the policy, its optimizer and where the run stands."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        model: PreTrainedModel,
        strategy: Strategy,
        tokenizer: PreTrainedTokenizerBase,
        output_dir: Path,
        newest_step: int | None,
        origin: LocalModel,
    ) -> None:
        """`newest_step` is the step of the newest checkpoint that is there already, `origin` the model that
        the policy started from."""
        self.newest_step = newest_step
        self._store = store
        self._model = model
        self._strategy = strategy
        self._tokenizer = tokenizer
        self._output_dir = output_dir
        self._origin = origin

    def is_new(self, state: RunState) -> bool:
        """Whether there is something to save: something was learned, and this step is not saved yet."""
        return state.step not in (0, self.newest_step)

    def save(self, state: RunState) -> None:
        """Write a checkpoint of `state`, whose weights the strategy holds."""

        def write(folder: Path) -> None:
            write_checkpoint(
                folder,
                model=self._model,
                strategy=self._strategy,
                tokenizer=self._tokenizer,
                state=state,
            )

        with full_volume_named(self._output_dir):
            path = self._store.save(state.step, write)
        self.newest_step = state.step
        logger.info("saved %s", path)

    def export(self) -> None:
        """Write the policy to OUTPUT/model."""
        with full_volume_named(self._output_dir):
            export_model(
                self._output_dir / MODEL_FOLDER,
                model=self._model,
                strategy=self._strategy,
                tokenizer=self._tokenizer,
                origin=self._origin,
            )
