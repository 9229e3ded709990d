"""`weightSync.disk`: where the versions of the weights are kept that engines read."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import CLAIM_FOLDER, PATH_STAYS_BELOW, Volume, VolumeKind, parse_source
from grpo_api.v1alpha1.spec.fields import BUCKET_PREFIX, ClaimName, Region, StoreEndpoint

CLAIM_SCHEME, S3_SCHEME = "pvc://", "s3://"


@rule(
    cel="self.to.startsWith('s3://') || !(has(self.secret) || has(self.endpoint) || has(self.region))",
    sentence="weightSync.disk.secret, weightSync.disk.endpoint and weightSync.disk.region are for s3:// "
    "destinations: remove them",
)
def only_buckets_have_secrets(to: str, secret: str | None, endpoint: str | None, region: str | None) -> bool:
    """A claim is mounted without credentials."""
    return to.startswith(S3_SCHEME) or (secret, endpoint, region) == (None, None, None)


class DiskSpec(ApiModel):
    """Where versions of the weights are kept, each a folder that vLLM and transformers load as a model."""

    rules = (only_buckets_have_secrets,)

    to: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Follows(
            TextRule(
                rf"^({CLAIM_FOLDER}|{BUCKET_PREFIX})$",
                "is not a destination for weights: write pvc://CLAIM/PATH or s3://BUCKET/PREFIX",
            ),
            PATH_STAYS_BELOW,
        ),
    ]
    """Where the versions are kept. `pvc://CLAIM/PATH` is a folder of a PersistentVolumeClaim, which the first
    trainer pod and all rollout pods mount; on several nodes it must be ReadWriteMany. `s3://BUCKET/PREFIX` is
    a prefix in a bucket of an S3-compatible store; the bucket must exist. Without a path or prefix it is a
    folder with the name and the uid of the job. A folder belongs to one job."""
    keep: Annotated[int, Field(ge=2, le=1000), NOT_STORED] = 3
    """How many of the newest versions to keep. Defaults to 3: one that is written, one that is read, and one
    for a slow engine. An engine that takes longer to read a version than the trainer takes to write this many
    finds it deleted, and reads the newest."""
    secret: ClaimName | None = None
    """Secret with the credentials of a bucket. The first trainer pod and all rollout pods mount it. Its keys
    are `accessKeyId`, `secretAccessKey` and, for temporary credentials, `sessionToken`."""
    endpoint: StoreEndpoint | None = None
    """Address of an S3-compatible store that is not Amazon's, such as `https://minio.storage:9000`."""
    region: Region | None = None
    """Region of the bucket. Defaults to `us-east-1`."""

    @property
    def is_bucket(self) -> bool:
        """Whether versions go to a bucket, and not to a claim."""
        return self.to.startswith(S3_SCHEME)

    @property
    def path(self) -> str:
        """The folder on the claim, or the prefix in the bucket; empty where none is named."""
        return (
            parse_source(self.to).path
            if not self.is_bucket
            else self.to.removeprefix(S3_SCHEME).partition("/")[2]
        )

    @property
    def claim_volume(self) -> Volume | None:
        """The claim as pods mount it for the weights."""
        return None if self.is_bucket else Volume(VolumeKind.WEIGHTS, parse_source(self.to).name)

    @property
    def secret_volume(self) -> Volume | None:
        """The Secret that pods mount for the credentials."""
        return None if self.secret is None else Volume(VolumeKind.SECRET, self.secret)
