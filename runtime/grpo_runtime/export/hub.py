"""A model repository of the Hugging Face Hub as a destination.

Large files are sent one by one and are seen with all others by one commit. The Hub keeps what was sent before
the commit, and takes nothing twice.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.hf_api import RepoFile

from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.errors import UserError, first_line
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.files import LocalFile

_COMMIT = "Upload the trained policy"
_BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED}
"""Too many requests, or somebody else commits at the same time."""
_CONNECTION_ERRORS = (ConnectionError, TimeoutError, httpx2.TransportError)


class HubDestination:
    """The branch `main` of a repository of the Hub: a `Destination`."""

    def __init__(self, spec: ExportSpec, *, credentials: UploadCredentials, field: str) -> None:
        """Without credentials the token is looked for where `hf auth login` leaves it."""
        self.what = f"{field} ({spec.to})"
        self._secret = credentials.named(f"{field.removesuffix('.to')}.secret")
        self._name, self._private = spec.to.removeprefix("hf://"), spec.private
        self._api = HfApi(token=credentials.read("token"))

    def prepare(self) -> None:
        """Make the repository unless it is there, and ask whether the token may write to it: for one that is
        there, the library takes it as well if the token may only read."""
        with self._errors():
            self._api.create_repo(self._name, private=self._private, exist_ok=True)
            self._api.auth_check(self._name, write=True)

    def holds(self, file: LocalFile) -> bool:
        """Whether the file is there with this digest. Of a small file the Hub reports git's."""
        with self._errors():
            found = self._api.get_paths_info(self._name, [file.name], revision="main")
        for there in found:
            if isinstance(there, RepoFile) and there.path == file.name and there.size == file.num_bytes:
                return there.lfs.sha256 == file.sha256 if there.lfs else there.blob_id == _git_digest(file)
        return False

    def send(self, file: LocalFile, *, on_bytes: Callable[[int], None]) -> None:
        """Send a large file; a small one goes with the commit."""
        with self._errors():
            self._api.preupload_lfs_files(self._name, [_addition(file)])
        on_bytes(file.num_bytes)

    def publish(self, files: Sequence[LocalFile]) -> None:
        """Commit all files, of which the Hub leaves out those that are the same already."""
        with self._errors():
            self._api.create_commit(
                self._name, [_addition(file) for file in files], commit_message=_COMMIT, num_threads=1
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The library's errors as those of a destination."""
        try:
            yield
        # without their causes: those quote signed addresses, which work for every reader
        except HFValidationError as error:
            raise UserError(f"{self.what} is no name of a repository: {first_line(error)}") from None
        except HfHubHTTPError as error:
            raise self._translated(error) from None
        except (*_CONNECTION_ERRORS, RuntimeError) as error:
            # what happens while a file is on its way is behind an error about the file
            cause = error.__cause__ if isinstance(error, RuntimeError) else error
            if isinstance(cause, HfHubHTTPError):
                raise self._translated(cause) from None
            if not isinstance(cause, _CONNECTION_ERRORS):
                raise
            raise DestinationUnreachableError(
                f"{self.what}: the Hub cannot be reached ({type(cause).__name__}): let the pods reach it"
            ) from None

    def _translated(self, error: HfHubHTTPError) -> Exception:
        status = error.response.status_code
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _BUSY:
            return DestinationUnreachableError(f"{self.what}: the Hub answers with HTTP {status}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            return UserError(
                f"{self.what}: the Hub refuses access (HTTP {status}): let the access token in the Secret of "
                f"{self._secret} write to this repository"
            )
        return UserError(f"{self.what}: the Hub answers with HTTP {status}: check the name of the repository")


def _addition(file: LocalFile) -> CommitOperationAdd:
    return CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file.path)


def _git_digest(file: LocalFile) -> str:
    """The digest of git's object."""
    content = file.path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
