"""The rollout pod's process 1 with the real vLLM behind it."""

import asyncio
import re
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.engines.fleet.engine_client import (
    MAX_BYTES,
    Address,
    EngineClient,
    EngineRefusedError,
    open_session,
)
from grpo_runtime.engines.routes import ROUTES, Access
from grpo_runtime.rollouts.wire import EngineCall
from grpo_runtime.settings import Tokens

pytestmark = pytest.mark.engine


def call(
    engine: Any, method: str, path: str, *, token: str | None, attempt: int, instance: str | None = None
) -> int:
    headers = {"Content-Type": "application/json", "X-GRPO-Attempt": str(attempt)}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if instance is not None:
        headers["X-GRPO-Instance"] = instance
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(engine.url(path), data=body, headers=headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def mounted_routes(engine: Any) -> set[tuple[str, str]]:
    """What vLLM says it serves."""
    found = set()
    for path, methods in re.findall(r"Route: (\S+), Methods: ([A-Z, ]+)", engine.log()):
        found |= {(method, re.sub(r"\{[^}]*\}", "x", path)) for method in methods.split(", ")}
    return found


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
NOT_THERE, NO_TOKEN, NO_RIGHT, ANOTHER_PROCESS = 404, 401, 403, 409


def test_of_all_that_vllm_mounts_each_token_reaches_exactly_its_list(engine: Any, attempt: int) -> None:
    """Every path with every method. The calls name another process, so that a guard that would let one
    through says 409 and nothing happens."""
    mounted = mounted_routes(engine)
    assert {("POST", "/collective_rpc"), ("POST", "/v1/completions"), ("GET", "/metrics")} <= mounted
    assert len(mounted) > 40
    paths = {path for _, path in mounted | ROUTES.keys()}
    tokens = {None: None, "data": engine.data_token, "admin": engine.admin_token, "wrong": "wrong"}
    expected = {
        Access.DATA: {None: NO_TOKEN, "wrong": NO_TOKEN, "data": ANOTHER_PROCESS, "admin": ANOTHER_PROCESS},
        Access.ADMIN: {None: NO_TOKEN, "wrong": NO_TOKEN, "data": NO_RIGHT, "admin": ANOTHER_PROCESS},
    }
    surprises = {}
    for method, path in ((method, path) for path in sorted(paths) for method in METHODS):
        access = ROUTES.get((method, path))
        for name, token in tokens.items():
            found = call(engine, method, path, token=token, attempt=attempt, instance="another")
            if access is None:
                is_right = found == NOT_THERE
            elif access is Access.OPEN:
                is_right = found in (200, 503)
            else:
                is_right = found == expected[access][name]
            if not is_right:
                surprises[method, path, name] = found
    assert surprises == {}


@pytest.mark.parametrize(
    "path",
    ["/pause/", "//pause", "/./pause", "/x/../pause", "/PAUSE", "/pause%00", "/pause;x", "/%2fpause"],
)
def test_another_spelling_of_a_path_is_another_path(engine: Any, attempt: int, path: str) -> None:
    assert call(engine, "POST", path, token=engine.admin_token, attempt=attempt, instance="x") == NOT_THERE


def test_every_route_on_the_list_is_there_and_asks_for_its_token(engine: Any, attempt: int) -> None:
    # an earlier test may have admitted it
    assert call(engine, "POST", "/grpo/v1/revoke", token=engine.admin_token, attempt=attempt) == 200
    outcomes = {
        route: tuple(
            call(engine, *route, token=token, attempt=attempt) for token in (None, "wrong", engine.data_token)
        )
        for route in ROUTES
    }
    for route, access in ROUTES.items():
        if access == Access.ADMIN:
            assert outcomes[route] == (401, 401, 403), route
        elif access == Access.DATA:
            assert outcomes[route] == (401, 401, 503), route
    # harmless ones reach vLLM and are answered by it
    for method, path in (("GET", "/is_paused"), ("GET", "/weight_info"), ("POST", "/resume")):
        assert call(engine, method, path, token=engine.admin_token, attempt=attempt) == 200
    # 422: vLLM misses the body's fields, so the request came through
    for path in ("/init_weight_transfer_engine", "/update_weights"):
        assert call(engine, "POST", path, token=engine.admin_token, attempt=attempt) in (400, 422), path


def test_no_token_is_in_the_log_or_on_a_command_line(engine: Any, attempt: int) -> None:
    call(engine, "POST", "/resume", token=engine.admin_token, attempt=attempt)
    call(engine, "POST", "/resume", token="wrong-secret", attempt=attempt)
    own = f"/proc/{engine.process.pid}"
    texts = [engine.log(), *(Path(own, name).read_text(errors="replace") for name in ("cmdline", "environ"))]
    for secret in (engine.data_token, engine.admin_token, "wrong-secret"):
        assert not any(secret in text for text in texts)


def test_what_vllm_says_in_every_weight_sync_is_not_in_the_log(engine: Any, attempt: int) -> None:
    for path in ("/pause", "/resume"):
        assert call(engine, "POST", path, token=engine.admin_token, attempt=attempt) == 200
    assert " INFO " in engine.log()
    assert not re.findall(r".*(?:setting pause state|reset prefix cache).*", engine.log())


def test_an_engine_is_a_server_and_its_fork_and_no_process_was_asked_about_the_model(engine: Any) -> None:
    core = _core_pid(engine)
    # a core that was spawned has a helper of multiprocessing beside it
    assert sorted(_processes_of(engine)) == sorted([engine.process.pid, core])
    # where vLLM writes what its own process has found out about the model's class
    assert not (engine.folder / "cache" / "vllm" / "modelinfos").exists()


def test_the_core_does_not_hold_the_servers_port(engine: Any) -> None:
    port = _listening_socket(engine.port)
    assert port in _open_files(engine.process.pid)
    assert port not in _open_files(_core_pid(engine))


async def test_what_vllm_refuses_is_the_callers_error_and_the_engine_goes_on(
    engine: Any, attempt: int
) -> None:
    async with open_session() as session:
        client = admin_of(engine, session, attempt=attempt)
        for call, said in (
            (EngineCall((1,) * 10_000, {"max_tokens": 4}), "longer than the maximum model length"),
            (EngineCall((1, 2), {"max_tokens": 3.5}), "max_tokens"),
            (EngineCall((1, 2), {"max_tokens": 4, "temprature": 1.0}), "temprature"),
            (EngineCall((), {"max_tokens": 4}), "cannot be empty"),
        ):
            with pytest.raises(EngineRefusedError, match=f"HTTP 400: .*{said}"):
                await client.sample(call, max_bytes=MAX_BYTES)
        assert await client.is_paused(timeout_seconds=20) is False


async def test_a_caller_that_leaves_ends_the_work_in_the_engine(engine: Any, attempt: int) -> None:
    async with open_session() as session:
        client = admin_of(engine, session, attempt=attempt)
        endless = EngineCall((1, 2), {"max_tokens": 1000, "min_tokens": 1000, "n": 2})
        waiting = asyncio.ensure_future(client.sample(endless, max_bytes=MAX_BYTES))
        await until_running(client, 2)
        waiting.cancel()
        await until_running(client, 0)


def admin_of(engine: Any, session: aiohttp.ClientSession, *, attempt: int) -> EngineClient:
    """Calls to the engine, all with the admin's token: it may sample before the engine is admitted."""
    tokens = Tokens(data=engine.admin_token, admin=engine.admin_token)
    return EngineClient(session, Address("127.0.0.1", engine.port), tokens=tokens, attempt=attempt)


async def until_running(client: EngineClient, number: int) -> None:
    """Wait until the engine works on so many completions."""
    async with asyncio.timeout(60):
        while True:
            load = await client.load(timeout_seconds=20)
            if load is not None and load.num_running == number:
                return
            await asyncio.sleep(0.05)


def termination(engine: Any) -> TerminationMessage:
    return TerminationMessage.model_validate_json(engine.termination_log.read_text())


def test_a_stop_is_heard_before_the_engine_is_up_and_leaves_nothing(start: Any, tmp_path: Path) -> None:
    manager: AbstractContextManager[Any] = start(
        tmp_path / "spare", name="spare", is_awaited=False, is_forked=False
    )
    with manager as engine:
        _wait_for(lambda: "EngineCore" in engine.log(), seconds=120)
        assert engine.stop() == ExitCode.TERMINATED
        assert termination(engine).reason == "Terminated"
        # multiprocessing's own helper ends when it sees the end of the others
        _wait_for(lambda: _processes_of(engine) == [], seconds=60)


def test_a_killed_server_takes_its_engine_with_it(start: Any, tmp_path: Path) -> None:
    manager: AbstractContextManager[Any] = start(
        tmp_path / "spare", name="spare", is_awaited=False, is_forked=False
    )
    with manager as engine:
        _wait_for(lambda: "(EngineCore pid=" in engine.log(), seconds=120)
        engine.process.kill()
        engine.process.wait(60)
        _wait_for(lambda: _processes_of(engine) == [], seconds=60)


def test_a_configuration_that_vllm_refuses_is_the_users_error(start: Any, tmp_path: Path) -> None:
    manager = start(tmp_path / "spare", name="spare", is_awaited=False, max_model_len=100_000)
    with manager as engine:
        assert engine.process.wait(120) == ExitCode.USER_ERROR
        message = termination(engine)
        assert (message.exit_code, message.reason) == (40, "UserError")
        assert "vLLM refuses this configuration" in message.message
        assert "max_model_len" in message.message


def test_a_model_that_is_not_there_is_the_users_error(start: Any, tmp_path: Path) -> None:
    manager = start(tmp_path / "spare", name="spare", is_awaited=False, model_source="file:///no/such/model")
    with manager as engine:
        assert engine.process.wait(60) == ExitCode.USER_ERROR
        assert "/no/such/model" in termination(engine).message


def _wait_for(condition: Any, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _processes_of(engine: Any) -> list[int]:
    """Living processes of the pod's session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == engine.process.pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _core_pid(engine: Any) -> int:
    """The engine core's process: the one child of the server. It is not found by its title, which vLLM cannot
    set in every environment (setproctitle then does nothing)."""
    [core] = [pid for pid in _processes_of(engine) if pid != engine.process.pid]
    parent = Path(f"/proc/{core}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) == engine.process.pid
    return core


def _listening_socket(port: int) -> str:
    """What /proc calls the socket that listens on `port`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            return f"socket:[{fields[9]}]"
    raise AssertionError(f"nobody listens on {port}")


def _open_files(pid: int) -> set[str]:
    return {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
