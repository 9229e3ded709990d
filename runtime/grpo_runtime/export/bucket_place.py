"""Where in a bucket of an S3-compatible store something is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BucketPlace:
    """A place in a bucket, `s3://BUCKET/PREFIX`, of the store at `endpoint`, or of Amazon's."""

    url: str
    endpoint: str | None = None
    region: str | None = None

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """What the keys begin with; empty for the whole bucket."""
        return self.url.removeprefix("s3://").partition("/")[2]
