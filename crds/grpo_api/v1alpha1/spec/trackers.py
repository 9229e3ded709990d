"""`trackers`: services that get the metrics of every step, beside the files in the output directory."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.spec.fields import ClaimName


class TrackerName(StrEnum):
    """The services there are."""

    WANDB = "wandb"
    MLFLOW = "mlflow"


@rule(
    cel="self.name != 'mlflow' || has(self.url)",
    sentence="trackers.url is missing: MLflow has no address of its own, so name its tracking server, such "
    "as http://mlflow.tracking:5000",
    field=".url",
)
def mlflow_has_an_address(name: TrackerName, url: str | None) -> bool:
    """Weights & Biases has one for everybody."""
    return name is not TrackerName.MLFLOW or url is not None


class TrackerSpec(ApiModel):
    """A service that gets the metrics of every step. One that does not answer never holds training up."""

    rules = (mlflow_has_an_address,)

    name: TrackerName
    """`wandb` is Weights & Biases, `mlflow` an MLflow tracking server."""
    project: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)] | None = None
    """W&B's project, or ENTITY/PROJECT; MLflow's experiment. Without it that is the job's namespace. The run
    has the job's name."""
    url: Annotated[str, Field(pattern=r"^https?://[^?#@\s]+$", max_length=253)] | None = None
    """Address of the service; needed for MLflow, and for a W&B that is not `https://api.wandb.ai`."""
    secret: ClaimName | None = None
    """Secret with the credentials, mounted in the first trainer pod only. For `wandb` its key is `apiKey`,
    for `mlflow` they are `token`, or `username` and `password`."""

    @property
    def secret_volume(self) -> Volume | None:
        """What the first trainer pod mounts for it."""
        return None if self.secret is None else Volume(VolumeKind.SECRET, self.secret)
