"""`grpo-runtime follow`: waits for a first version, starts the engine's server on it, and follows.

It ends with the contract's exit codes: 40 when an option is wrong, 143 when it was asked to stop, 1 when the
engine died.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.follow.follower import CheckedVersions, FollowedEngine, Follower
from grpo_runtime.engines.follow.openai_guard import SERVED, TOKEN_FILE, read_token
from grpo_runtime.engines.interface import EngineKind
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.engines.serve.stopping import Stopping
from grpo_runtime.errors import KnownError, UserError, VolumeFullError
from grpo_runtime.export.access import S3Location, UploadCredentials
from grpo_runtime.process.log import log_to_stderr
from grpo_runtime.weight_sync.disk.backend import FOLLOWED_FOLDER, store_in_bucket
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version import VersionManifest
from grpo_runtime.weight_sync.interface import WeightSyncError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FollowOptions:
    """The command's options. `credentials` is a folder with the keys of a Secret as files, `engine` what
    else the engine is given."""

    source: str
    token: Path
    cache: Path
    host: str
    port: int
    interval_seconds: float
    timeout_seconds: float
    endpoint: str | None = None
    region: str | None = None
    credentials: Path | None = None
    engine: Sequence[str] = ()


def follow(options: FollowOptions) -> int:
    """Serve until asked to stop; returns the exit code."""
    log_to_stderr()
    stopping, kind = Stopping(lambda: None), engine_kind()
    stopping.listen()
    try:
        read_token(options.token)
        versions = open_versions(options)
        name, manifest = _first_version(versions, interval_seconds=options.interval_seconds)
        versions.start_on(name)
        os.environ |= {
            FOLLOWED_FOLDER: str(versions.local.root),
            TOKEN_FILE: str(options.token),
            "HF_HUB_OFFLINE": "1",
            **kind.environment(),
        }
        SERVED.version = str(manifest.version)
        failure = _serve(options, versions, name=name, kind=kind, stopping=stopping)
        if failure is not None:
            # a server that no longer follows must not look as if it did
            return _say(failure)
    except KnownError as error:
        if not stopping.is_requested:
            return _say(error)
    if stopping.is_requested:
        return ExitCode.TERMINATED
    print(f"the {kind.name} engine died; see the log above", file=sys.stderr)
    return ExitCode.UNEXPECTED


def _say(error: BaseException) -> ExitCode:
    """Print why this process ends; returns its exit code. Raises what nobody expected."""
    if not isinstance(error, KnownError):
        raise error
    print(error, file=sys.stderr)
    return error.exit_code


def open_versions(options: FollowOptions) -> CheckedVersions:
    """The versions of the store that the options name, to be copied to `cache`. Raises UserError."""
    source = _store_of(options)
    if isinstance(source, FolderStore) and source.root.resolve() == options.cache.resolve():
        raise UserError(f"--cache {options.cache} is the folder of --source: name another one to copy to")
    local = FolderStore(options.cache)
    try:
        options.cache.mkdir(parents=True, exist_ok=True)
        # of a process that was killed while it copied
        local.discard_unfinished()
    except (OSError, StoreError) as error:
        raise UserError(f"--cache: {error}: name a folder that this process may write to") from error
    return CheckedVersions(source, local=local)


def _store_of(options: FollowOptions) -> VersionStore:
    scheme, _, rest = options.source.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return FolderStore(Path(rest))
    if scheme != "s3" or not rest:
        raise UserError(f"--source {options.source} is no store: write file:///FOLDER or s3://BUCKET/PREFIX")
    name = None if options.credentials is None else str(options.credentials)
    credentials = UploadCredentials(name, options.credentials)
    return store_in_bucket(
        S3Location(options.source, endpoint=options.endpoint, region=options.region),
        credentials=credentials,
        field="--source",
        access=f"the credentials of {credentials.named('--credentials')} list and read there",
    )


def _first_version(versions: CheckedVersions, *, interval_seconds: float) -> tuple[str, VersionManifest]:
    """Wait until there is a version that passes its check."""
    pause, told = threading.Event(), ""
    while True:
        try:
            name = versions.newest()
            if name is not None:
                return name, versions.fetch(name)
            sentence = "there is no version yet"
        except (StoreError, VolumeFullError, WeightSyncError) as error:
            sentence = str(error)
        if sentence != told:
            log.warning("waiting for weights: %s", sentence)
        told = sentence
        pause.wait(interval_seconds)


def _serve(
    options: FollowOptions, versions: CheckedVersions, *, name: str, kind: EngineKind, stopping: Stopping
) -> BaseException | None:
    """Serve until the engine dies, the process is asked to stop, or the engine can no longer follow: returns
    why it cannot."""
    failures: list[BaseException] = []

    def end_with(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failures.append(error)
            # the shutdown may take longer than its limit
            log.error("the engine no longer follows: %s", error)
            signal.raise_signal(signal.SIGTERM)

    @asynccontextmanager
    async def following(engine: FollowedEngine) -> AsyncIterator[None]:
        follower = Follower(
            versions,
            engine,
            served=name,
            interval_seconds=options.interval_seconds,
            timeout_seconds=options.timeout_seconds,
        )
        task = asyncio.ensure_future(follower.run(asyncio.Event()))
        task.add_done_callback(end_with)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    kind.serve_followed(
        options.engine,
        model_dir=versions.folder_of(name),
        version=SERVED.version,
        host=options.host,
        port=options.port,
        new_loop=stopping.new_loop,
        beside=following,
    )
    return failures[0] if failures else None
