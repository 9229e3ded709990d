"""`export`: where the trained model is uploaded to."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import HUB_NEEDS_ITS_SCHEME, PATH_STAYS_BELOW, Volume, VolumeKind
from grpo_api.v1alpha1.spec.fields import BUCKET_PREFIX, ClaimName, Region, StoreEndpoint

HUB_SCHEME, S3_SCHEME = "hf://", "s3://"
_REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*"


@rule(
    cel="self.to.startsWith('s3://') || !(has(self.endpoint) || has(self.region))",
    sentence="export.endpoint and export.region are for s3:// destinations: remove them",
)
def only_buckets_have_endpoints(to: str, endpoint: str | None, region: str | None) -> bool:
    """The Hub has one address."""
    return to.startswith(S3_SCHEME) or (endpoint, region) == (None, None)


@rule(
    cel="self.to.startsWith('hf://') || !has(self.private)",
    sentence="export.private is for hf:// destinations: remove it (a bucket has a policy)",
    field=".private",
)
def only_repositories_are_private(to: str, private: bool | None) -> bool:
    """Who may read a bucket is not said with an upload."""
    return to.startswith(HUB_SCHEME) or private is None


class ExportSpec(ApiModel):
    """A destination of the trained model, in addition to `model/` in the output directory."""

    rules = (only_buckets_have_endpoints, only_repositories_are_private)

    to: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Follows(
            TextRule(
                rf"^(hf://{_REPOSITORY}|{BUCKET_PREFIX}|[^/:][^:]*)$",
                "is no destination: write hf://ORG/NAME or s3://BUCKET/PREFIX",
            ),
            replace(HUB_NEEDS_ITS_SCHEME, sentence="has no scheme: write hf://{self} or s3://BUCKET/PREFIX"),
            PATH_STAYS_BELOW,
        ),
    ]
    """`hf://ORG/NAME` is a model repository of the Hugging Face Hub, which is created if it is missing.
    `s3://BUCKET/PREFIX` is a prefix in a bucket of an S3-compatible store; the bucket must exist."""
    secret: ClaimName | None = None
    """Secret with the credentials. Only the first trainer pod mounts it. For `hf://` its key `token` is an
    access token that may write. For `s3://` its keys are `accessKeyId`, `secretAccessKey` and, for temporary
    credentials, `sessionToken`."""
    private: bool | None = None
    """Create a missing repository as private (true) or public (false). Defaults to what the organisation has
    set."""
    endpoint: StoreEndpoint | None = None
    """Address of an S3-compatible store that is not Amazon's, such as `https://minio.storage:9000`."""
    region: Region | None = None
    """Region of the bucket. Defaults to `us-east-1`."""

    @property
    def is_hub(self) -> bool:
        """Whether the destination is the Hugging Face Hub."""
        return self.to.startswith(HUB_SCHEME)

    @property
    def secret_volume(self) -> Volume | None:
        """The Secret that the first trainer pod mounts for the upload."""
        return None if self.secret is None else Volume(VolumeKind.SECRET, self.secret)
