"""An engine without vLLM that follows the versions of a store."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from disk_in_a_folder import small_files
from polling import wait_until
from receiver_harness import Receiver, packed, some_weights
from skipping_clock import SkippingClock

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.follow.follower import CheckedVersions, EngineHungError, Follower
from grpo_runtime.engines.follow.openai_guard import SERVED, TOKEN_FILE, VERSION_HEADER, FollowGuard
from grpo_runtime.errors import UserError
from grpo_runtime.weight_sync.disk.backend import StoreReceiver
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError
from grpo_runtime.weight_sync.disk.version import VersionManifest
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.receiver import StagingReceiver

SECONDS = 30.0


class Engine(Receiver):
    """An engine that reads from `folder`, and notes what was asked of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("disk")
        settings = self.end.settings  # type: ignore[attr-defined]
        self._worker.end = StagingReceiver(StoreReceiver(lambda: FolderStore(folder)), settings)
        self.calls: list[str] = []
        self.told = ""
        self.has_warned = asyncio.Event()

    async def pause(self) -> None:
        self.calls.append("pause")

    async def resume(self) -> None:
        self.calls.append("resume")

    def serves_version(self, version: str) -> None:
        self.told = version
        self.has_warned.set()

    async def call(self, verb: str, *arguments: Any) -> None:
        self.calls.append(verb)
        await super().call(verb, *arguments)


class Followed:
    """An `Engine` as a `FollowedEngine`: its `serves` is another one than that of the tests' receivers."""

    def __init__(self, engine: Engine) -> None:
        self.pause, self.resume, self.serves = engine.pause, engine.resume, engine.serves_version
        self.init, self.start, self.update = engine.init, engine.start, engine.update
        self.finish, self.shutdown = engine.finish, engine.shutdown


def publish(folder: Path, step: int) -> str:
    publisher = small_files(folder, keep=3)
    copy = packed(step)
    publisher.publish(copy, PolicyVersion(1, step))
    return publisher.published(copy).result(SECONDS).name


def follower_of(
    engine: Engine, versions: CheckedVersions, *, interval_seconds: float = 60.0, answer_seconds: float = 60.0
) -> Follower:
    return Follower(
        versions,
        Followed(engine),  # type: ignore[arg-type]
        served="version-000001-000000",
        interval_seconds=interval_seconds,
        timeout_seconds=SECONDS,
        answer_seconds=answer_seconds,
    )


def copied_from(source: FolderStore) -> CheckedVersions:
    """Versions that are copied to the folder `here` beside the store."""
    return CheckedVersions(source, local=FolderStore(source.root.parent / "here"))


@contextmanager
def fetches_of(versions: CheckedVersions) -> Iterator[list[str]]:
    """Everything that is fetched, in order, beside what the test itself puts in."""
    seen: list[str] = []
    fetch = versions.fetch

    def counted(name: str) -> VersionManifest:
        seen.append("fetch")
        return fetch(name)

    versions.fetch = counted  # type: ignore[method-assign]
    yield seen
    versions.fetch = fetch  # type: ignore[method-assign]


@pytest.fixture
def versions(tmp_path: Path) -> CheckedVersions:
    return copied_from(FolderStore(tmp_path / "source"))


async def test_each_new_version_is_loaded_bit_for_bit_while_requests_wait(
    versions: CheckedVersions, tmp_path: Path
) -> None:
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions)
    assert not await follower.update_once()
    for step in (1, 2):
        publish(tmp_path / "source", step)
        assert await follower.update_once()
        assert engine.serves(some_weights(step))
        assert (engine.version, engine.told) == (f"1.{step}", f"1.{step}")
        assert engine.calls == ["pause", "init", "start", "update", "finish", "resume"]
        engine.calls.clear()
        assert not await follower.update_once()
        assert engine.calls == []
    await engine.shutdown()


async def test_a_version_that_is_not_what_was_written_is_left_out_and_the_next_one_is_loaded(
    versions: CheckedVersions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions)
    publish(tmp_path / "source", 1)
    assert await follower.update_once()
    name = publish(tmp_path / "source", 2)
    damaged = min((tmp_path / "source" / name).glob("model-*.safetensors"))
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    engine.calls.clear()
    with caplog.at_level(logging.WARNING):
        assert not await follower.update_once()
        assert not await follower.update_once()
    [record] = caplog.records
    assert f"weights {name} are left out" in record.message and "SHA-256 differs" in record.message
    assert engine.calls == [] and engine.serves(some_weights(1))
    publish(tmp_path / "source", 3)
    assert await follower.update_once()
    assert engine.serves(some_weights(3))
    await engine.shutdown()


async def test_a_newer_version_that_fails_is_tried_again_as_soon_as_the_first_was(
    versions: CheckedVersions, tmp_path: Path
) -> None:
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions)
    for step, tries in ((1, [0, 2, 5, 10]), (2, [0, 2, 5, 10])):
        name = publish(tmp_path / "source", step)
        file = min((tmp_path / "source" / name).glob("model-*.safetensors"))
        written = file.read_bytes()
        file.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
        with fetches_of(versions) as seen:
            for _ in range(12):
                seen.append("look")
                assert not await follower.update_once()
        looks = [seen[:place].count("look") - 1 for place, what in enumerate(seen) if what == "fetch"]
        assert looks == tries
    await engine.shutdown()


async def test_a_version_that_failed_is_tried_again_less_and_less_often(
    versions: CheckedVersions, tmp_path: Path
) -> None:
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions)
    name = publish(tmp_path / "source", 1)
    file = min((tmp_path / "source" / name).glob("model-*.safetensors"))
    written = file.read_bytes()
    file.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    tries: list[int] = []
    looks: list[bool] = []
    fetch = versions.fetch

    def counted(name: str) -> VersionManifest:
        tries.append(len(looks))
        return fetch(name)

    versions.fetch = counted  # type: ignore[method-assign]
    while len(looks) < 12:
        looks.append(await follower.update_once())
    assert tries == [0, 2, 5, 10] and not any(looks)
    # its trainer has written it again
    file.write_bytes(written)
    while not looks[-1] and len(looks) < 30:
        looks.append(await follower.update_once())
    assert (len(looks) - 1, engine.told) == (19, "1.1") and engine.serves(some_weights(1))
    await engine.shutdown()


@pytest.mark.parametrize("step", ["pause", "finish", "resume"])
async def test_an_engine_that_hangs_in_a_step_that_cannot_be_given_up_ends_the_following(
    step: str, versions: CheckedVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(versions.local.root)
    followed, clock = Followed(engine), SkippingClock(monkeypatch)

    async def hang(*_: object) -> None:
        clock.skip(SECONDS)
        await asyncio.Event().wait()

    setattr(followed, step, hang)
    publish(tmp_path / "source", 1)
    follower = Follower(
        versions,
        followed,  # type: ignore[arg-type]
        served="version-000001-000000",
        interval_seconds=60.0,
        timeout_seconds=SECONDS,
    )
    with pytest.raises(EngineHungError, match=f"the engine did not {step} within 30 s"):
        await follower.run(asyncio.Event())
    await engine.shutdown()


COMPLETION = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "headers": [(b"authorization", b"Bearer secret")],
}
"""A request with the token of `guarded`."""


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a server with a token, which serves version 1.1."""
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
    monkeypatch.setattr(SERVED, "version", "1.1")


@pytest.mark.usefixtures("guarded")
async def test_a_request_that_arrives_while_the_weights_change_waits_and_names_the_new_ones() -> None:
    SERVED.may_begin.clear()
    asked, answers = asyncio.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        answers.append(dict(message["headers"]))

    request = asyncio.ensure_future(FollowGuard(app)(COMPLETION, receive_nothing, send))
    # what is waited for here would have come at once
    await asyncio.wait([request, asyncio.ensure_future(asked.wait())], timeout=0.2)
    assert not asked.is_set()
    SERVED.version = "1.2"
    SERVED.may_begin.set()
    await request
    assert answers == [{VERSION_HEADER: b"1.2"}]


@pytest.mark.usefixtures("guarded")
async def test_an_answer_names_the_weights_that_its_request_began_with() -> None:
    SERVED.may_begin.set()
    answers = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        SERVED.version = "1.2"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        answers.append(dict(message["headers"]))

    await FollowGuard(app)(COMPLETION, receive_nothing, send)
    assert answers == [{VERSION_HEADER: b"1.1"}]


async def receive_nothing() -> Any:
    raise AssertionError("nothing is to be received")


@pytest.mark.parametrize("text", ["", " \n", None])
def test_without_a_token_there_is_no_guard(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "token").write_text(text)
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "token"))
    with pytest.raises(UserError, match="no file with a token"):
        FollowGuard(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["update", "finish"])
async def test_an_engine_that_refuses_a_version_goes_on_with_the_old_one(
    versions: CheckedVersions, tmp_path: Path, verb: str
) -> None:
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions)
    publish(tmp_path / "source", 1)
    assert await follower.update_once()
    good = getattr(engine, verb)
    setattr(engine, verb, refuse)
    refusing = follower_of(engine, versions)
    publish(tmp_path / "source", 2)
    engine.calls.clear()
    assert not await refusing.update_once()
    assert engine.calls[-1] == "resume" and engine.serves(some_weights(1)) and engine.told == "1.1"
    setattr(engine, verb, good)
    publish(tmp_path / "source", 3)
    assert await follower_of(engine, versions).update_once()
    assert engine.serves(some_weights(3))
    await engine.shutdown()


async def refuse(info: object) -> None:
    raise WeightSyncError("this engine has another model")


async def test_a_store_that_is_gone_for_a_while_ends_nothing(tmp_path: Path) -> None:
    class Gone(FolderStore):
        is_gone = True

        def read(self, path: str) -> bytes:
            if self.is_gone:
                raise StoreError("the store cannot be reached")
            return super().read(path)

    source = Gone(tmp_path / "source")
    versions = copied_from(source)
    engine = Engine(versions.local.root)
    follower = follower_of(engine, versions, interval_seconds=0.01)
    stop = asyncio.Event()
    running = asyncio.ensure_future(follower.run(stop))
    publish(tmp_path / "source", 1)
    source.is_gone = False
    async with asyncio.timeout(SECONDS):
        await engine.has_warned.wait()
    stop.set()
    await running
    assert engine.serves(some_weights(1))
    await engine.shutdown()


async def test_a_store_that_hangs_is_named_in_the_log_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(FolderStore):
        """Until each of its reads has been named in the log."""

        def read(self, path: str) -> bytes:
            what = "the name of the newest weights" if path == "LATEST" else f"weights {name}"
            wait_until(
                lambda: f"reading {what} from the store takes longer than 0.01 s" in caplog.text,
                f"a word about {path}",
            )
            return super().read(path)

    source = Hanging(tmp_path / "source")
    versions = copied_from(source)
    engine = Engine(versions.local.root)
    name = publish(tmp_path / "source", 1)
    assert await follower_of(engine, versions, answer_seconds=0.01).update_once()
    assert engine.serves(some_weights(1))
    await engine.shutdown()


async def test_a_latest_that_names_no_version_is_warned(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("LATEST", b"../../etc")
    with pytest.raises(WeightSyncError, match="names no version"):
        copied_from(store).newest()


async def test_an_engine_that_cannot_even_be_resumed_ends_the_following(
    versions: CheckedVersions, tmp_path: Path
) -> None:
    engine = Engine(versions.local.root)

    async def fail() -> None:
        raise RuntimeError("the engine is dead")

    engine.resume = fail  # type: ignore[method-assign]
    publish(tmp_path / "source", 1)
    with pytest.raises(RuntimeError, match="the engine is dead"):
        await follower_of(engine, versions).run(asyncio.Event())
    await engine.shutdown()
