"""Keeps an engine on the newest version of a store."""

import asyncio
import logging
import secrets
from typing import Protocol

from grpo_runtime.errors import VolumeFullError
from grpo_runtime.follow.versions import CheckedVersions
from grpo_runtime.weight_sync.deadlines import Deadlines
from grpo_runtime.weight_sync.disk.store import StoreError
from grpo_runtime.weight_sync.disk.version_manifest import VersionManifest
from grpo_runtime.weight_sync.interface import ControlChannel, WeightSyncError
from grpo_runtime.weight_sync.verbs import Verbs

log = logging.getLogger(__name__)

_ENGINE = "engine"


class FollowedEngine(ControlChannel, Protocol):
    """An engine as it is updated here: the verbs of weight transfer, and what goes before and after."""

    async def pause(self) -> None:
        """Hold all requests, which go on after `resume` with what they have sampled."""
        ...

    async def resume(self) -> None:
        """Go on with the weights that the engine has now."""
        ...

    def serves(self, version: str) -> None:
        """Say in every answer from now on that it begins with these weights."""
        ...


class Follower:
    """Looks every `interval_seconds` which version is the newest, and gives it to the engine.

    A version that fails its check, or that the engine refuses, is left out: the engine goes on with the
    weights that it has. A store that cannot be read is asked again.
    """

    def __init__(
        self,
        versions: CheckedVersions,
        engine: FollowedEngine,
        *,
        served: str,
        interval_seconds: float,
        timeout_seconds: float,
    ) -> None:
        """`served` is the name of the version that the engine has loaded."""
        self._versions = versions
        self._engine = engine
        self._seen = served
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._verbs = Verbs({_ENGINE: engine}, Deadlines(timeout_seconds))
        self._sender = secrets.token_hex(8)
        self._told = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set."""
        while not stop.is_set():
            try:
                await self.look()
            except (StoreError, VolumeFullError) as error:
                self._tell(f"the newest weights cannot be read: {error}")
            try:
                async with asyncio.timeout(self._interval_seconds):
                    await stop.wait()
            except TimeoutError:
                continue

    async def look(self) -> bool:
        """Update the engine if there is a newer version; whether it has been. Raises StoreError and
        VolumeFullError, and what an engine raises that cannot go on."""
        name = self._seen
        try:
            newest = await asyncio.to_thread(self._versions.newest)
            if newest is None or newest == self._seen:
                return False
            name = newest
            manifest = await asyncio.to_thread(self._versions.bring, name)
            info = await asyncio.to_thread(self._versions.update_info, name, manifest, sender=self._sender)
            await self._update(manifest, dict(info))
        except WeightSyncError as error:
            self._seen = name
            self._tell(f"weights {name} are left out, the engine goes on with those it has: {error}")
            return False
        self._seen, self._told = name, ""
        log.info("the engine has weights %s of job %s", manifest.version, manifest.job.name)
        return True

    async def _update(self, manifest: VersionManifest, info: dict[str, object]) -> None:
        """Let the engine read and load what `info` names. The old weights stay when that fails."""
        version = str(manifest.version)
        await self._engine.pause()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._engine.init({"sender": self._sender})
                for error in (await self._verbs.start([_ENGINE])).values():
                    raise error
                await self._engine.update(info)
            # without a limit: given up in the middle, nobody would know which weights the engine has
            await self._engine.finish(version)
            self._engine.serves(version)
        except TimeoutError as error:
            raise WeightSyncError(f"not done within {self._timeout_seconds:g} s") from error
        finally:
            await self._engine.resume()

    def _tell(self, sentence: str) -> None:
        """Log a sentence, once until another one is due."""
        if sentence != self._told:
            log.warning("%s", sentence)
        self._told = sentence
