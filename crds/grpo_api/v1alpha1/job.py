"""The GRPOJob object as a whole."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from grpo_api.contract.labels import GROUP
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus

VERSION = "v1alpha1"
KIND = "GRPOJob"
PLURAL = "grpojobs"
API_VERSION = f"{GROUP}/{VERSION}"


class ObjectMeta(ApiModel):
    """The parts of an object's metadata we read; the rest is kept away from us."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1, max_length=253)
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


class GRPOJob(ApiModel):
    """A GRPO post-training run: a policy, prompts, rewards, and the hardware to train it on."""

    api_version: Literal["grpo.dev/v1alpha1"]
    kind: Literal["GRPOJob"]
    metadata: ObjectMeta
    spec: GRPOJobSpec
    status: GRPOJobStatus = GRPOJobStatus()


def parse_job(data: Any) -> GRPOJob:
    """Read a GRPOJob from plain data; raises pydantic's ValidationError."""
    return GRPOJob.from_object(data)
