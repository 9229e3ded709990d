"""The model that a run starts from, as each rank loads it.

Of an `hf://` model it is the commit that the run began with, on every rank and in every attempt, also when
the branch has moved since.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.model import ApiModel
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.fit import replace_unknown_padding, require_fit
from grpo_runtime.model.language_model import vocabulary_size
from grpo_runtime.model.load import (
    empty_policy,
    load_config,
    load_generation_config,
    load_policy,
    load_tokenizer,
)
from grpo_runtime.model.lora import add_adapter
from grpo_runtime.model.source import LocalModel, materialise_model
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE

KEPT = "model-commit.json"
"""File in the output directory with the commit that the run began with."""
_DIGITS = 64
"""Most digits of a commit; those of the Hub have 40."""


@dataclass(frozen=True)
class LoadedModel:
    """The policy to start from: the model has its weights on rank 0, in CPU memory, and is on the meta device
    elsewhere."""

    origin: LocalModel
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def vocab_size(self) -> int:
        """Entries of the model's vocabulary."""
        return vocabulary_size(self.model.config)

    @property
    def decoder(self) -> CompletionDecoder:
        """Decoder of completions."""
        return CompletionDecoder.of(self.tokenizer, self.model.generation_config)


@dataclass(frozen=True)
class ModelCommits:
    """The commit in the output directory of a run. A trainer pod that does not mount it finds none there and
    hears it from rank 0."""

    settings: TrainerSettings

    @property
    def _path(self) -> Path:
        return self.settings.output_dir / KEPT

    def kept(self) -> str | None:
        """The commit that the run began with; None where there is none for this model."""
        if not self._path.exists():
            return None
        found = KeptCommit.model_validate_json(self._path.read_text())
        return found.commit if found.is_of(self.settings.run_config) else None

    def keep(self, origin: LocalModel) -> None:
        """Rank 0: write the commit of `origin` for later attempts, unless this job has one there."""
        run_config = self.settings.run_config
        if origin.commit is None:
            return
        if self._path.exists():
            found = KeptCommit.model_validate_json(self._path.read_text())
            if found.job_uid == run_config.job.uid:
                return
        model = run_config.model
        kept = KeptCommit(
            job_uid=run_config.job.uid, source=model.source, revision=model.revision, commit=origin.commit
        )
        write_atomically(self._path, kept.model_dump_json(by_alias=True, indent=1), durable=True)

    def materialise(self, *, commit: str | None, into: Path) -> LocalModel:
        """The model of the run in a directory of this container, at `commit` or at what `model.revision` is
        now. Raises UserError as `materialise_model` does."""
        run_config = self.settings.run_config
        model = run_config.model
        if commit is not None:
            model = model.model_copy(update={"revision": commit})
        try:
            return materialise_model(
                model, hub=run_config.hub, volumes_dir=self.settings.volumes_dir, into=into
            )
        except UserError as error:
            if commit is None:
                raise
            raise UserError(f"{error}; this is the commit that the run began with") from error


class KeptCommit(ApiModel):
    """The commit that `source` at `revision` was when the job with this uid began."""

    job_uid: str
    source: str
    revision: str | None = None
    commit: str

    def is_of(self, run_config: RunConfig) -> bool:
        """Whether the run asks for the same model in the same words. One that names another revision gets
        that one, and an adapter for this commit is then refused."""
        model = run_config.model
        return (self.job_uid, self.source, self.revision) == (
            run_config.job.uid,
            model.source,
            model.revision,
        )


def load_model(commits: ModelCommits, *, commit: str | None, into: Path, is_first: bool) -> LoadedModel:
    """The model to start from, at `commit` where it is an `hf://` model with one."""
    origin = commits.materialise(commit=commit, into=into)
    run_config = commits.settings.run_config
    tokenizer = load_tokenizer(origin.folder)
    config = load_config(origin.folder)
    require_fit(config, load_generation_config(origin.folder, config), tokenizer, run_config)
    replace_unknown_padding(tokenizer, config)
    model = _load_model(run_config, origin=origin, is_first=is_first)
    return LoadedModel(origin=origin, model=model, tokenizer=tokenizer)


def _load_model(run_config: RunConfig, *, origin: LocalModel, is_first: bool) -> PreTrainedModel:
    """The policy, with its weights on rank 0 only. Those under an adapter are frozen, so they need no more
    precision than the passes have, but DeepSpeed takes nothing else than float32."""
    lora = run_config.model.lora
    is_rounded = lora is not None and not run_config.strategy.is_zero
    dtype = run_config.model.dtype.value if is_rounded else MASTER_DTYPE
    load = load_policy if is_first else empty_policy
    model = load(origin.folder, dtype=dtype, attention=run_config.model.attention)
    if lora is not None:
        add_adapter(model, lora, seed=run_config.algorithm.seed, origin=origin)
    return model


def commit_of_first_rank(commit: str | None, *, ranks: Ranks) -> str | None:
    """Rank 0's `commit`, on every rank."""
    digits = torch.zeros(_DIGITS, dtype=torch.uint8)
    if ranks.rank == 0 and commit is not None:
        own = torch.frombuffer(bytearray(commit, "ascii"), dtype=torch.uint8)
        digits[: len(own)] = own
    text = bytes(ranks.broadcast(digits).tolist()).rstrip(b"\0").decode("ascii")
    return text or None
