"""The GRPOJob object as a whole."""

import re
from typing import Any, Literal

from pydantic import ConfigDict, Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.spec.fields import JOB_NAME_PATTERN
from grpo_api.v1alpha1.status import GRPOJobStatus

GROUP = "grpo.dev"
"""The API group, which is also the prefix of our labels."""
VERSION = "v1alpha1"
KIND = "GRPOJob"
PLURAL = "grpojobs"
API_VERSION = f"{GROUP}/{VERSION}"


class ObjectMeta(ApiModel):
    """The parts of an object's metadata that we read; the others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1, max_length=253)
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()


@rule(
    cel=f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
    sentence="metadata.name becomes a label and part of host names: use at most 63 lower-case letters, "
    "digits and hyphens, beginning with a letter and ending with a letter or a digit",
    field=".metadata.name",
)
def name_is_a_label(metadata: ObjectMeta) -> bool:
    """The name can be a label and a part of the children's names."""
    return re.fullmatch(JOB_NAME_PATTERN, metadata.name) is not None


@rule(
    cel="!has(self.spec.resumeFrom) || !has(self.spec.resumeFrom.job) || "
    "self.spec.resumeFrom.job != self.metadata.name",
    sentence="resumeFrom.job names the job itself, which continues from its own checkpoints anyway: name "
    "another job, or remove resumeFrom",
    field=".spec.resumeFrom.job",
)
def another_job_is_resumed(metadata: ObjectMeta, spec: GRPOJobSpec) -> bool:
    """A job cannot wait for its own end."""
    return spec.resume_from is None or spec.resume_from.job != metadata.name


class GRPOJob(ApiModel):
    """A GRPO post-training run: a policy, prompts, rewards, and the hardware to train it on."""

    rules = (name_is_a_label, another_job_is_resumed)

    api_version: Literal["grpo.dev/v1alpha1"]
    kind: Literal["GRPOJob"]
    metadata: ObjectMeta
    spec: GRPOJobSpec
    status: GRPOJobStatus = GRPOJobStatus()


def parse_job(data: Any) -> GRPOJob:
    """Read a GRPOJob from plain data; raises pydantic's ValidationError."""
    return GRPOJob.from_object(data)
