"""Where a store is, and the credentials for it, without the library of any store."""

from dataclasses import dataclass, field
from pathlib import Path

from grpo_api.source import Volume
from grpo_runtime.errors import UserError


@dataclass(frozen=True)
class S3Location:
    """A prefix in a bucket, `s3://BUCKET/PREFIX`, of the store at `endpoint`, or of Amazon's."""

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


@dataclass(frozen=True)
class UploadCredentials:
    """The credentials in a Secret whose keys are files in `folder`, or the user's own, where that is
    None."""

    secret: str | None = None
    folder: Path | None = field(default=None, repr=False)

    @classmethod
    def of(cls, volume: Volume | None, *, volumes_dir: Path) -> "UploadCredentials":
        """The credentials of a Secret that is mounted below `volumes_dir`, or the user's own, where there is
        none or where a run on this machine has none there."""
        if volume is None:
            return cls()
        folder = volumes_dir / volume.folder
        return cls(volume.name, folder if folder.is_dir() else None)

    def read(self, key: str, *, is_optional: bool = False) -> str | None:
        """What the Secret has under `key`; None for the user's own. Raises UserError when it has none."""
        if self.folder is None:
            return None
        path = self.folder / key
        if not path.is_file():
            if is_optional:
                return None
            raise UserError(f"the Secret {self.secret} has no key {key}: add it")
        text = path.read_text().strip()
        if not text:
            raise UserError(f"the key {key} of the Secret {self.secret} is empty")
        return text

    def named(self, field: str) -> str:
        """The field that names the Secret, for messages, and its value."""
        return f"{field} (it is {self.secret})" if self.secret else field
