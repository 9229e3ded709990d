"""`export`: where the trained model is uploaded to."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.source import HUB_NEEDS_ITS_SCHEME, PATH_STAYS_BELOW, Volume, VolumeKind
from grpo_api.text_rule import Follows, TextRule
from grpo_api.v1alpha1.spec.fields import BUCKET_PLACE, ClaimName, Region, StoreEndpoint
from grpo_api.v1alpha1.spec.hub import HubSpec

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
    """A destination of the trained model, beside `model/` in the output directory."""

    rules = (only_buckets_have_endpoints, only_repositories_are_private)

    to: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Follows(
            TextRule(
                rf"^(hf://{_REPOSITORY}|{BUCKET_PLACE}|[^/:][^:]*)$",
                "is no destination: write hf://ORG/NAME or s3://BUCKET/PREFIX",
            ),
            replace(HUB_NEEDS_ITS_SCHEME, sentence="has no scheme: write hf://{self} or s3://BUCKET/PREFIX"),
            PATH_STAYS_BELOW,
        ),
    ]
    """`hf://ORG/NAME` is a model repository of the Hugging Face Hub, which is made if it is missing.
    `s3://BUCKET/PREFIX` is a place in a bucket of an S3-compatible store; the bucket must exist."""
    secret: ClaimName | None = None
    """Secret with the credentials, mounted in the first trainer pod only. For `hf://` its key `token` is an
    access token that may write; for `s3://` its keys are `accessKeyId`, `secretAccessKey` and, for temporary
    credentials, `sessionToken`."""
    private: bool | None = None
    """Make a missing repository private (true) or public (false); left out, the organisation's default."""
    endpoint: StoreEndpoint | None = None
    """Address of an S3-compatible store that is not Amazon's, such as `https://minio.storage:9000`."""
    region: Region | None = None
    """Region of the bucket; `us-east-1` if it is left out."""

    @property
    def is_hub(self) -> bool:
        """Whether the destination is the Hugging Face Hub."""
        return self.to.startswith(HUB_SCHEME)

    @property
    def secret_volume(self) -> Volume | None:
        """What the first trainer pod mounts for it."""
        return None if self.secret is None else Volume(VolumeKind.SECRET, self.secret)


@rule(
    cel="!has(self.export) || !self.hub.offline || self.export.all(e, !e.to.startsWith('hf://'))",
    sentence="hub.offline keeps every pod from the Hub, and export.to names a repository there: remove one",
    field=".export",
)
def export_reaches_the_hub(export: tuple[ExportSpec, ...] | None, hub: HubSpec) -> bool:
    """An upload needs the network."""
    return not (hub.offline and any(destination.is_hub for destination in export or ()))
