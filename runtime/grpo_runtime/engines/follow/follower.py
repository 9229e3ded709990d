"""Keeps an engine on the newest version of a store: brings each here, checked, and gives it to the engine.

A version is copied from a claim too, and not read there: a job keeps few versions, and does not wait for
readers.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import KnownError, VolumeFullError
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.disk.store import FolderStore, MissingError, StoreError, VersionStore
from grpo_runtime.weight_sync.disk.version import (
    LATEST,
    MANIFEST,
    StoredStream,
    VersionManifest,
    parse_manifest,
    version_named,
)
from grpo_runtime.weight_sync.disk.version_reader import VersionReader, copy_version, tag_of
from grpo_runtime.weight_sync.interface import ControlChannel, Info, WeightSyncError
from grpo_runtime.weight_sync.sender import Verbs
from grpo_runtime.weight_sync.stream.manifest import UpdateInfo
from grpo_runtime.weight_sync.tag import KEY_BYTES, TAG_BYTES

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENGINE = "engine"
_MOST_SKIPPED = 64
"""How often at most a version that failed is passed over before it is tried again."""


class EngineHungError(KnownError):
    """The engine does not answer in a step that cannot be aborted. Started again it has whole weights."""

    exit_code = ExitCode.TRANSIENT


class FollowedEngine(ControlChannel, Protocol):
    """An engine as it is updated here: the verbs of weight transfer, and what goes before and after."""

    async def pause(self) -> None:
        """Hold all requests, which continue after `resume` with what they have sampled."""
        ...

    async def resume(self) -> None:
        """Continue with the weights that the engine has now."""
        ...

    def serves(self, version: str) -> None:
        """Say in every answer from now on that it begins with these weights."""
        ...


class CheckedVersions:
    """Versions of `source` in `local`, a folder of this container that they are copied to, checked."""

    def __init__(self, source: VersionStore, *, local: FolderStore) -> None:
        self._source = source
        self.local = local
        self._started_on: str | None = None

    def newest(self) -> str | None:
        """The name that LATEST has; None before the first version. Raises StoreError as the store does, and
        WeightSyncError for what is no name of a version."""
        try:
            name = self._source.read(LATEST).decode(errors="replace").strip()
        except MissingError:
            return None
        if version_named(name) is None:
            raise WeightSyncError(f"{LATEST} of {self._source.what} names no version")
        return name

    def fetch(self, name: str) -> VersionManifest:
        """Copy a version, whose files are checked on the way. Of those copied before none stays,
        but for what `start_on` keeps.

        Raises WeightSyncError for one that is not what its trainer wrote, StoreError where it cannot be read,
        and VolumeFullError.
        """
        manifest = parse_manifest(self._source.read(f"{name}/{MANIFEST}"), name=name)
        for other in self.local.folders():
            if other == self._started_on:
                for weights in self.folder_of(other).glob("*.safetensors"):
                    weights.unlink()
            elif version_named(other) is not None:
                self.local.discard(other)
        copy_version(self._source, name, manifest, into=self.local)
        return manifest

    def start_on(self, name: str) -> None:
        """Keep the files beside the weights of this version, whatever is fetched later: the server that is
        started on it goes on to read its configuration when the engine has its weights."""
        self._started_on = name

    def folder_of(self, name: str) -> Path:
        """Where a version is."""
        return self.local.root / name

    def update_info(self, name: str, manifest: VersionManifest, *, sender: str) -> Info:
        """The verb `update` for a version that was brought: as a trainer's, with a tag that is computed
        here. Raises WeightSyncError."""
        key = secrets.token_bytes(KEY_BYTES)
        tag = tag_of(self.local, name, manifest, key=key)
        stream = VersionReader(self.local, name, manifest, tag=bytes(TAG_BYTES)).stream
        connection = StoredStream(sender=sender, name=name, tag=tag)
        info = UpdateInfo(manifest=stream, key=key.hex(), connection=str(connection))
        return info.model_dump(mode="json", exclude={"abort", "changes"})


class Follower:
    """Looks every `interval_seconds` which version is the newest, and gives it to the engine.

    Where a version fails its check, or the engine refuses it, the engine continues with the weights that it
    has, and the version is tried again after a growing number of looks: its trainer may have written it once
    more. A store that cannot be read is asked again. `timeout_seconds` limits each step of an update.
    """

    def __init__(
        self,
        versions: CheckedVersions,
        engine: FollowedEngine,
        *,
        served: str,
        interval_seconds: float,
        timeout_seconds: float,
        answer_seconds: float = 60.0,
    ) -> None:
        """`served` is the name of the version that the engine has loaded. A store that takes longer than
        `answer_seconds` is named in the log, and waited for: a mount may hang, and come back."""
        self._versions = versions
        self._engine = engine
        self._served = served
        self._failed: str | None = None
        self._num_left = self._num_skipped = 1
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._answer_seconds = answer_seconds
        self._verbs = Verbs({_ENGINE: engine}, Deadlines(timeout_seconds))
        self._sender = secrets.token_hex(8)
        self._warned = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set."""
        while not stop.is_set():
            try:
                await self.update_once()
            except (StoreError, VolumeFullError) as error:
                self._warn_once(f"the newest weights cannot be read: {error}")
            try:
                async with asyncio.timeout(self._interval_seconds):
                    await stop.wait()
            except TimeoutError:
                continue

    async def update_once(self) -> bool:
        """Update the engine if there is a newer version; whether it has been. Raises StoreError and
        VolumeFullError, EngineHungError, and what an engine raises that cannot continue."""
        name: str | None = None
        try:
            name = await self._read("the name of the newest weights", self._versions.newest)
            if name is None or name == self._served or self._is_skipped(name):
                return False
            manifest = await self._read(f"weights {name}", self._versions.fetch, name)
            info = await asyncio.to_thread(self._versions.update_info, name, manifest, sender=self._sender)
            await self._update(manifest, dict(info))
        except WeightSyncError as error:
            self._failed = name
            what = f"weights {name} are" if name else "the newest weights are"
            self._warn_once(f"{what} left out, the engine continues with those it has: {error}")
            return False
        self._served, self._warned = name, ""
        log.info("the engine has weights %s of job %s", manifest.version, manifest.job.name)
        return True

    async def _read(self, what: str, read: Callable[..., T], *arguments: Any) -> T:
        """What `read` returns of the store, however long it takes."""
        sentence = (
            f"reading {what} from the store takes longer than {self._answer_seconds:g} s: meanwhile the "
            "engine continues with the weights that it has"
        )
        warning = asyncio.get_running_loop().call_later(self._answer_seconds, log.warning, "%s", sentence)
        try:
            return await asyncio.to_thread(read, *arguments)
        finally:
            warning.cancel()

    def _is_skipped(self, name: str) -> bool:
        """Whether a version that has failed is passed over this time: once, then twice, four times, ..."""
        if name != self._failed:
            self._num_left, self._num_skipped = 1, 1
            return False
        if self._num_left > 0:
            self._num_left -= 1
            return True
        self._num_skipped = min(2 * self._num_skipped, _MOST_SKIPPED)
        self._num_left = self._num_skipped
        return False

    async def _update(self, manifest: VersionManifest, info: dict[str, object]) -> None:
        """Let the engine read and load what `info` names. The old weights stay when that fails."""
        version = str(manifest.version)
        await self._within_limit(self._engine.pause(), "pause")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._engine.init({"sender": self._sender})
                for error in (await self._verbs.start([_ENGINE])).values():
                    raise error
                await self._engine.update(info)
            # not to be given up: nobody would know which weights the engine has
            await self._within_limit(self._engine.finish(version), "finish")
            self._engine.serves(version)
        except TimeoutError as error:
            raise WeightSyncError(f"not done within {self._timeout_seconds:g} s") from error
        finally:
            await self._within_limit(self._engine.resume(), "resume")

    async def _within_limit(self, step: Coroutine[Any, Any, None], name: str) -> None:
        """Raises EngineHungError."""
        try:
            async with asyncio.timeout(self._timeout_seconds) as limit:
                await step
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineHungError(
                f"the engine did not {name} within {self._timeout_seconds:g} s (--timeout-seconds): this "
                "process ends, and serves whole weights when it is started again"
            ) from error

    def _warn_once(self, sentence: str) -> None:
        """Log a sentence, once until another one is due."""
        if sentence != self._warned:
            log.warning("%s", sentence)
        self._warned = sentence
