"""Models and datasets of the Hugging Face Hub: brings their files into the local cache, or says why it
cannot."""

import errno
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from grpo_api.v1alpha1.spec import HubSpec
from grpo_runtime.errors import HubUnreachableError, UserError, VolumeFullError
from grpo_runtime.storage.paths import link_out_of
from grpo_runtime.storage.volume_errors import is_volume_full

logger = logging.getLogger(__name__)

Kind = Literal["model", "dataset"]
RETRY_SECONDS = (2.0, 5.0, 15.0)
"""Pauses between tries while the Hub cannot be reached: the network of a new pod may come after the pod."""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit in the local cache."""

    folder: Path
    commit: str

    @property
    def repository(self) -> Path:
        """What the cache has of the repository: the files of a snapshot are links to blobs beside it."""
        return self.folder.parents[1]


def download(
    kind: Kind,
    name: str,
    *,
    revision: str | None,
    hub: HubSpec,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    retry_seconds: Sequence[float] = RETRY_SECONDS,
) -> Snapshot:
    """Bring the files of repository `name` (ORG/NAME) into the cache, or find them there.

    The cache and the access token are those of huggingface_hub (HF_HOME, HF_TOKEN). `allow` and `ignore` are
    patterns of file names. With `hub.offline` the Hub is not asked, nor about a `revision` that is a commit
    whose files are in the cache.

    Raises HubUnreachableError when the Hub cannot be reached after all tries, or fails itself (HTTP 5xx and
    429); UserError when it refuses, or offline the cache lacks the files, or the cache may not be written;
    VolumeFullError when the cache has no space left; ConnectionError for any other answer of the Hub.
    """
    if hub.offline:
        go_offline()
    for pause in (*retry_seconds, None):
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    name,
                    repo_type=kind,
                    revision=revision,
                    allow_patterns=None if allow is None else list(allow),
                    ignore_patterns=None if ignore is None else list(ignore),
                    local_files_only=hub.offline,
                )
            )
        except HFValidationError as error:
            raise UserError(f"{kind}.source (hf://{name}) is no name of a repository: {error}") from error
        except (OSError, httpx2.TransportError) as error:
            # if the files are not in the cache either, the library raises that and keeps the Hub's answer
            # behind it
            cause = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else error
            if (problem := _cache_problem(cause, hub=hub)) is not None:
                raise problem from error
            if pause is None or hub.offline or _is_refusal(cause):
                raise _translated(cause, kind, name, revision=revision, hub=hub) from error
            logger.warning("%s %s: the Hub cannot be reached, trying again in %.0f s", kind, name, pause)
            time.sleep(pause)
        else:
            logger.info("%s %s is commit %s", kind, name, folder.name)
            snapshot = Snapshot(folder=folder, commit=folder.name)
            if (outside := link_out_of(snapshot.repository, folder)) is not None:
                raise UserError(
                    f"{kind}.source (hf://{name}): the Hub's cache has a link to {outside}, which is no file "
                    f"of the repository: remove {snapshot.repository}"
                )
            return snapshot
    raise AssertionError("the last try returns or raises")


def go_offline() -> None:
    """Keep the libraries of this process and of its children from asking the Hub."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    # the library reads the variable only when it is imported
    constants.HF_HUB_OFFLINE = True


def _is_refusal(error: BaseException) -> bool:
    """Whether the Hub answered, and would answer the same again."""
    if not isinstance(error, HfHubHTTPError):
        return False
    status = error.response.status_code
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS


def _cache_problem(error: BaseException, *, hub: HubSpec) -> Exception | None:
    """The error that says what is wrong with the volume of the cache; None when that is not the cause."""
    claim = f"hub.cacheClaim ({hub.cache_claim})" if hub.cache_claim else "hub.cacheClaim"
    if is_volume_full(error):
        return VolumeFullError(
            f"the volume of the Hub's cache ({constants.HF_HUB_CACHE}) is full: remove what is not needed "
            f"there, or name a larger claim in {claim}"
        )
    if isinstance(error, OSError) and error.errno in _FORBIDDEN:
        return UserError(
            f"the Hub's cache ({constants.HF_HUB_CACHE}) cannot be used, {error}: let the pods' user read "
            f"and write the claim of {claim}"
        )
    return None


def _translated(
    error: BaseException, kind: Kind, name: str, *, revision: str | None, hub: HubSpec
) -> Exception:
    """The library's error as one that names the field of the spec and the fix."""
    if isinstance(error, HfHubHTTPError):
        return _refusal(error, kind, name, revision=revision, hub=hub)
    what = f"{kind}.source (hf://{name})" + (f" at revision {revision}" if revision else "")
    if hub.offline:
        return UserError(
            f"{what} is not in the cache ({constants.HF_HUB_CACHE}) and hub.offline is set: fill the cache "
            "by one job without hub.offline, or with `hf download`"
        )
    cause = error.__cause__ or error
    last = f"{type(cause).__name__}: {cause}".splitlines()[0]
    return HubUnreachableError(
        f"{what} is not in the cache and the Hub cannot be reached: let the pods reach it, or fill the claim "
        f"of hub.cacheClaim elsewhere and set hub.offline; the last error: {last}"
    )


def _refusal(
    error: HfHubHTTPError, kind: Kind, name: str, *, revision: str | None, hub: HubSpec
) -> Exception:
    what = f"{kind}.source (hf://{name})"
    token = f"hub.tokenSecret (it is {hub.token_secret})" if hub.token_secret else "hub.tokenSecret"
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return UserError(
            f"{what} is gated: ask for access on its page of the Hub, and name a Secret with an access token "
            f"in {token}"
        )
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"{kind}.revision ({revision}) is no branch, tag or commit of hf://{name}")
    if isinstance(error, RepositoryNotFoundError):
        return UserError(
            f"{what}: the Hub has no such {kind}, or it is private: check the name, or name a Secret with an "
            f"access token in {token}"
        )
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return UserError(
            f"{what}: the Hub refuses access (HTTP {status}): check the access token in the Secret of {token}"
        )
    message = f"{what}: the Hub answers with HTTP {status}"
    return ConnectionError(message) if _is_refusal(error) else HubUnreachableError(message)
