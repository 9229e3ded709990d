"""Which commit of an `hf://` model a run is made from: the one that it began with, on every rank and in every
attempt, also when the branch has moved since."""

from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_api.model import ApiModel
from grpo_runtime.errors import UserError
from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.source import materialise_model
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.trainer.distributed import Ranks

KEPT = "model-commit.json"
"""In the output directory: the commit that the run began with."""
_DIGITS = 64
"""As many as a commit has at most; those of the Hub have 40."""


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
        """The model of the run at `commit`, or at what `model.revision` is now; see `materialise_model`."""
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


def commit_of_first_rank(commit: str | None, *, ranks: Ranks) -> str | None:
    """Rank 0's `commit`, on every rank."""
    digits = torch.zeros(_DIGITS, dtype=torch.uint8)
    if ranks.rank == 0 and commit is not None:
        own = torch.frombuffer(bytearray(commit, "ascii"), dtype=torch.uint8)
        digits[: len(own)] = own
    text = bytes(ranks.broadcast(digits).tolist()).rstrip(b"\0").decode("ascii")
    return text or None
