"""What is kept: checkpoints while training, the model at the end. Rank 0 only."""

import logging
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.report.volume import full_volume_named
from grpo_runtime.trainer.checkpoint import RunState, export_model, write_checkpoint
from grpo_runtime.trainer.checkpoint_store import CheckpointStore
from grpo_runtime.trainer.learner import Learner

logger = logging.getLogger(__name__)

MODEL_FOLDER = "model"


class Saver:
    """Saves the policy, its optimizer and where the run stands."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        learner: Learner,
        tokenizer: PreTrainedTokenizerBase,
        output_dir: Path,
        newest_step: int | None,
        origin: LocalModel,
    ) -> None:
        """`newest_step` is the step of the newest checkpoint that is there already, `origin` the model that
        the policy started from."""
        self.newest_step = newest_step
        self._store = store
        self._policy = learner.policy
        self._optimizer = learner.optimizer
        self._tokenizer = tokenizer
        self._output_dir = output_dir
        self._origin = origin

    def save(self, state: RunState) -> None:
        """Save now, unless this step is saved already, or nothing was learned yet."""
        if state.step in (0, self.newest_step):
            return

        def write(folder: Path) -> None:
            write_checkpoint(
                folder,
                policy=self._policy,
                optimizer=self._optimizer,
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
                policy=self._policy,
                tokenizer=self._tokenizer,
                origin=self._origin,
            )
