"""A bucket of an S3-compatible store as a destination, through obstore.

Every request is signed with the SHA-256 of what it carries, so that the store refuses a part that is not what
was sent. The SHA-256 of a whole file is kept with it, as metadata: it identifies what is there already.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import S3Location, UploadCredentials
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.files import LocalFile

logger = logging.getLogger(__name__)

DEFAULT_REGION = "us-east-1"
PART_BYTES = 32 * 1024 * 1024
_MAX_PARTS = 10_000
_PARTS_AT_ONCE = 4
_SHA256 = "sha256"
WRITE_CHECK = ".grpo-write-check"
"""A key that is written beside those of a model, to know before the first step whether any may be written."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
NOT_FOUND = (FileNotFoundError, exceptions.NotFoundError)
"""obstore raises the first one for a key."""
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
"""Statuses of a client error that another try may not meet."""


def open_bucket(
    location: S3Location,
    *,
    credentials: UploadCredentials,
    timeout: timedelta = timedelta(seconds=60),
    num_retries: int = 0,
) -> S3Store:
    """The keys of a location. Without credentials those in the environment are taken (AWS_ACCESS_KEY_ID and
    so on). `timeout` is for each answer of the store. Nothing is asked over the network yet. Raises UserError
    when the Secret lacks a key."""
    settings: dict[str, Any] = {"endpoint": location.endpoint and location.endpoint.rstrip("/")}
    settings |= {
        "access_key_id": credentials.read("accessKeyId"),
        "secret_access_key": credentials.read("secretAccessKey"),
        "session_token": credentials.read("sessionToken", is_optional=True),
    }
    return S3Store(
        location.bucket,
        prefix=location.prefix or None,
        region=location.region or DEFAULT_REGION,
        **{name: value for name, value in settings.items() if value is not None},
        client_options={
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": timeout,
            "timeout": timedelta(hours=1),
            "allow_http": True,
        },
        retry_config={
            "max_retries": num_retries,
            "retry_timeout": max(timeout * num_retries, timedelta(seconds=1)),
        },
    )


class BucketErrors:
    """The library's errors about a location, as errors of ours. What they quote of requests and answers is
    left out but for the code."""

    TRANSLATED = (UserError, DestinationUnreachableError)

    def __init__(
        self, location: S3Location, *, credentials: UploadCredentials, field: str, access: str | None = None
    ) -> None:
        """`field` is what messages call the location, and `access` says which credentials must be let do
        what, where they are not to read and write and those of the Secret that the field's section names."""
        self.what = f"{field} ({location.url})"
        self._bucket = location.bucket
        secret = credentials.named(f"{field.removesuffix('.to')}.secret")
        self._access = access or f"the credentials in the Secret of {secret} list, read and write there"

    @contextmanager
    def translated(self, *, known: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Raise UserError for a store that refuses and DestinationUnreachableError for one that another try
        may find well, in place of the library's errors but for `known`."""
        try:
            yield
        except known:
            raise
        except (exceptions.BaseError, OSError) as error:
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> Exception:
        text = str(error)
        status = HTTPStatus(int(found[1])) if (found := _STATUS.search(text)) else None
        code = found[1] if (found := _CODE.search(text)) else type(error).__name__
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return UserError(f"{self.what}: the store refuses access ({code}): let {self._access}")
        if status is HTTPStatus.NOT_FOUND:
            return UserError(
                f"{self.what}: the store has no bucket {self._bucket} ({code}): make it, or correct the name"
            )
        if status is not None and status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _BUSY:
            return UserError(
                f"{self.what}: the store answers with HTTP {status.value} ({code}): check the bucket, its "
                "region and the endpoint"
            )
        answer = "cannot be reached" if status is None else f"answers with HTTP {status.value}"
        return DestinationUnreachableError(f"{self.what}: the store {answer}: check endpoint and network")


class S3Destination:
    """Keys below a prefix of a bucket: a `Destination`."""

    def __init__(
        self,
        spec: ExportSpec,
        *,
        credentials: UploadCredentials,
        field: str,
        part_bytes: int = PART_BYTES,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """Without credentials those in the environment are taken (AWS_ACCESS_KEY_ID and so on). `timeout` is
        for each answer of the store."""
        location = S3Location(spec.to, endpoint=spec.endpoint, region=spec.region)
        errors = BucketErrors(location, credentials=credentials, field=field)
        self.what, self._errors = errors.what, errors.translated
        self._part_bytes = part_bytes
        # the tries are those of `upload`, which says what it waits for
        self._store = open_bucket(location, credentials=credentials, timeout=timeout)

    def prepare(self) -> None:
        """Look whether the bucket is there and may be listed, and write a key without content. It is removed
        where the credentials may do that."""
        with self._errors():
            next(iter(obstore.list(self._store, chunk_size=1)), None)
            obstore.put(self._store, WRITE_CHECK, b"")
        try:
            with self._errors():
                obstore.delete(self._store, WRITE_CHECK)
        except UserError as error:
            # an upload removes nothing, so nobody has to allow it
            logger.info("%s of %s stays: %s", WRITE_CHECK, self.what, error)

    def holds(self, file: LocalFile) -> bool:
        """Whether the key is there with this size and digest."""
        try:
            with self._errors(known=NOT_FOUND):
                found = obstore.get(self._store, file.name, options={"head": True})
        except NOT_FOUND:
            return False
        return found.meta["size"] == file.num_bytes and found.attributes.get(_SHA256) == file.sha256

    def send(self, file: LocalFile, *, on_bytes: Callable[[int], None]) -> None:
        """Send the file, in several parts when it is large. It is seen when all of it has arrived."""
        part_bytes = max(self._part_bytes, -(-file.num_bytes // _MAX_PARTS))
        with self._errors():
            obstore.put(
                self._store,
                file.name,
                _parts(file, part_bytes=part_bytes, on_bytes=on_bytes),
                attributes={_SHA256: file.sha256},
                chunk_size=part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def publish(self, files: Sequence[LocalFile]) -> None:
        """Nothing: a store has no change of several files at once, so config.json came last."""


def _parts(file: LocalFile, *, part_bytes: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """The content of the file. One part is asked for when there is room for it among those on their way."""
    with file.path.open("rb") as source:
        while part := source.read(part_bytes):
            yield part
            on_bytes(len(part))
