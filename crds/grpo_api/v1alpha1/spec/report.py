"""`report` and `trackers`: what people read of a run, and the services that get its metrics."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.spec.fields import ClaimName


class ReportSpec(ApiModel):
    """What is written for people to read, in addition to the metrics."""

    samples_every_steps: Annotated[int, Field(ge=0, le=10_000_000), NOT_STORED] = 10
    """Keep the completions of every so many steps, and of the last one, with their rewards as tables in
    `completions/` of the output directory, and of each evaluation in `evaluations/`. 0 keeps none.
    Defaults to 10."""


_Project = Annotated[
    str,
    Field(max_length=128),
    Follows(
        TextRule(
            "^[A-Za-z0-9][A-Za-z0-9._/-]*$",
            "must be a project, or ENTITY/PROJECT: use letters, digits, ., _, - and /, and begin with a "
            "letter or a digit",
        )
    ),
]
_Address = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule(
            r"^https?://[^?#@\s]+$",
            "must be an address without user, password, query or fragment: write http://HOST or "
            "https://HOST, and put credentials into the Secret that secret names",
        )
    ),
]


class TrackerName(StrEnum):
    """The supported services."""

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
    project: _Project | None = None
    """W&B's project, or ENTITY/PROJECT; MLflow's experiment. Defaults to the job's namespace. The run has the
    job's name."""
    url: _Address | None = None
    """Address of the service. Needed for MLflow, and for a W&B that is not `https://api.wandb.ai`."""
    secret: ClaimName | None = None
    """Secret with the credentials. Only the first trainer pod mounts it. For `wandb` its key is `apiKey`; for
    `mlflow` its keys are `token`, or `username` and `password`."""

    @property
    def secret_volume(self) -> Volume | None:
        """The Secret that the first trainer pod mounts for the tracker."""
        return None if self.secret is None else Volume(VolumeKind.SECRET, self.secret)
