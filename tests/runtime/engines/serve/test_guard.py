"""The guard, without vLLM."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVLLM, RefusedError
from guard_client import GuardClient
from guard_environment import ADMIN, DATA, guard_environment

from grpo_runtime.engines.routes import ENGINE_ROUTES, ROUTES, Access
from grpo_runtime.engines.serve.guard import Guard
from grpo_runtime.engines.serve.http import MAX_BODY_BYTES
from grpo_runtime.rollouts.frames import Frame, encode_frame
from grpo_runtime.rollouts.interface import EngineError
from grpo_runtime.rollouts.wire import EngineCall, read_completion, read_logprobs

LIVE, READY, IDENTITY = "/grpo/v1/live", "/grpo/v1/ready", "/grpo/v1/identity"
ADMIT, REVOKE = "/grpo/v1/admit", "/grpo/v1/revoke"
SAMPLE, LOGPROBS = "/grpo/v1/sample", "/grpo/v1/logprobs"
CALL = encode_frame(EngineCall((1, 2), {"seed": 5}).frame())


@pytest.fixture
def client(tmp_path: Path, run_json: str, monkeypatch: pytest.MonkeyPatch) -> GuardClient:
    for name, value in guard_environment(tmp_path, run_json=run_json).items():
        monkeypatch.setitem(os.environ, name, value)
    vllm = FakeVLLM()
    return GuardClient(Guard(vllm), vllm)


async def admit(client: GuardClient, *, version: str, attempt: int) -> int:
    client.vllm.weight_version = version
    status, _ = await client.call("POST", ADMIT, token=ADMIN, attempt=attempt, body={"version": version})
    return status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/collective_rpc"),
        ("GET", "/metrics/"),
        ("GET", "/metricsx"),
        ("GET", "/health"),
        ("POST", "/v1/completions"),
        ("POST", "/pause/"),
        ("POST", "//pause"),
        ("GET", "/pause"),
        ("HEAD", LIVE),
        ("OPTIONS", SAMPLE),
        ("POST", "/inference/v1/generate"),
        ("POST", "/grpo/v1/sample/../../../pause"),
    ],
)
async def test_what_is_not_listed_is_not_there_even_for_the_admin(
    client: GuardClient, method: str, path: str
) -> None:
    status, _ = await client.call(method, path, token=ADMIN, attempt=1)
    assert status == 404
    assert client.vllm.reached == []


@pytest.mark.parametrize(("route", "access"), [(r, a) for r, a in ROUTES.items() if a != Access.OPEN])
@pytest.mark.parametrize("token", [None, "", "wrong", ADMIN + "x", DATA[:-1]])
async def test_a_listed_route_needs_a_token_of_the_job(
    client: GuardClient, route: tuple[str, str], access: Access, token: str | None
) -> None:
    status, _ = await client.call(*route, token=token, attempt=1)
    assert status == 401
    assert client.vllm.reached == []


@pytest.mark.parametrize("route", [route for route, access in ROUTES.items() if access == Access.ADMIN])
async def test_the_data_token_administers_nothing(client: GuardClient, route: tuple[str, str]) -> None:
    status, _ = await client.call(*route, token=DATA, attempt=1)
    assert status == 403
    assert client.vllm.reached == []


@pytest.mark.parametrize("route", sorted(ENGINE_ROUTES))
async def test_the_admin_reaches_every_engine_route(client: GuardClient, route: tuple[str, str]) -> None:
    async def say_no() -> None:
        raise RefusedError("says vLLM", status=418)

    client.vllm.during[route[1]] = say_no
    status, answer = await client.call(*route, token=ADMIN, attempt=1, body={})
    assert (status, answer["error"]["message"]) == (418, "says vLLM")
    assert client.vllm.reached == [" ".join(route)]


async def test_sampling_waits_for_admission_and_the_probe_does_not(client: GuardClient) -> None:
    status, answer = await client.call("POST", SAMPLE, token=DATA, body=CALL)
    assert (status, answer["error"]["message"]) == (503, "engine pod-0 is not admitted to a fleet yet")
    assert client.vllm.reached == []
    [frame] = await client.call_for_frames(LOGPROBS, token=ADMIN, attempt=1, body=CALL)
    assert read_logprobs(frame) == [client.vllm.probe_logprob]

    assert await admit(client, version="1.0", attempt=1) == 200
    [frame] = await client.call_for_frames(SAMPLE, token=DATA, body=CALL)
    rollout = read_completion(frame, prompt_ids=(1, 2))
    assert (rollout.completion_ids, rollout.engine) == ((5, 6, 7), "pod-0")


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", CALL[:-1], CALL + CALL, encode_frame(Frame({}, {})), encode_frame(Frame({"core": 1}, {}))],
)
async def test_a_call_that_is_none_is_refused_and_does_not_reach_the_engine(
    client: GuardClient, body: bytes
) -> None:
    await admit(client, version="1.0", attempt=1)
    client.vllm.reached.clear()
    for path, token in ((SAMPLE, DATA), (LOGPROBS, ADMIN)):
        status, answer = await client.call("POST", path, token=token, attempt=1, body=body)
        assert status == 400
        assert "the body is no call of an engine" in answer["error"]["message"]
    assert client.vllm.reached == []


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RefusedError("the prompt is too long", status=400), 400, "the prompt is too long"),
        (EngineError("vLLM gave it up"), 500, "vLLM gave it up"),
        (RuntimeError("the core is dead"), 500, "RuntimeError: the core is dead"),
    ],
)
async def test_what_the_engine_raises_is_told_to_the_caller(
    client: GuardClient, error: Exception, status: int, said: str
) -> None:
    async def fail() -> None:
        raise error

    await admit(client, version="1.0", attempt=1)
    client.vllm.during[SAMPLE] = fail
    found, answer = await client.call("POST", SAMPLE, token=DATA, body=CALL)
    assert (found, answer["error"]["message"]) == (status, said)


async def test_a_caller_that_leaves_ends_the_work_in_the_engine(client: GuardClient) -> None:
    is_asked, has_ended = asyncio.Event(), asyncio.Event()

    async def wait_for_ever() -> None:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    await admit(client, version="1.0", attempt=1)
    client.vllm.during[SAMPLE] = wait_for_ever
    async with asyncio.timeout(10):
        sent = await client.call_and_leave(SAMPLE, token=DATA, body=CALL, when=is_asked)
        await has_ended.wait()
    assert sent == []


async def test_an_engine_is_ready_from_admission_until_it_is_revoked(client: GuardClient) -> None:
    assert (await client.call("GET", READY))[0] == 503
    await admit(client, version="1.0", attempt=1)
    assert (await client.call("GET", READY))[0] == 200
    for verb in ("/pause", "/start_weight_update"):
        assert (await client.call("POST", verb, token=ADMIN, attempt=1, body={}))[0] == 200
        assert (await client.call("GET", READY))[0] == 200
    await client.call("POST", REVOKE, token=ADMIN, attempt=1)
    assert (await client.call("GET", READY))[0] == 503


async def test_weights_that_the_engine_does_not_hold_are_not_admitted(client: GuardClient) -> None:
    client.vllm.weight_version = "1.3"
    status, answer = await client.call("POST", ADMIT, token=ADMIN, attempt=1, body={"version": "1.4"})
    assert status == 409
    assert answer["error"]["message"] == "engine pod-0 holds weights 1.3, not 1.4"
    assert (await client.call("GET", READY))[0] == 503


async def test_an_earlier_attempt_is_refused_and_a_later_one_takes_over(client: GuardClient) -> None:
    await admit(client, version="2.0", attempt=2)

    status, answer = await client.call("POST", "/pause", token=ADMIN, attempt=1, body={})
    assert status == 409
    assert answer["error"]["message"] == "attempt 1 is over: engine pod-0 belongs to attempt 2"
    assert client.vllm.reached == []
    assert (await client.call("GET", READY))[0] == 200

    _, identity = await client.call("GET", IDENTITY, token=ADMIN, attempt=3)
    assert (identity["attempt"], identity["version"], identity["state"]) == (3, "", "waiting")
    assert (await client.call("GET", READY))[0] == 503


async def test_a_call_meant_for_another_process_is_refused(client: GuardClient) -> None:
    _, identity = await client.call("GET", IDENTITY, token=ADMIN, attempt=1)
    for path, token in (("/pause", ADMIN), (SAMPLE, DATA)):
        status, answer = await client.call("POST", path, token=token, attempt=1, instance="another")
        assert status == 409
        assert "was restarted" in answer["error"]["message"]
    instance = identity["instance"]
    status, _ = await client.call("POST", "/pause", token=ADMIN, attempt=1, instance=instance, body={})
    assert status == 200


@pytest.mark.parametrize("attempt", [None, "", "0", "-1", "1.5", "one", "9" * 10])
async def test_an_admin_call_must_say_its_attempt(client: GuardClient, attempt: Any) -> None:
    status, answer = await client.call("POST", "/pause", token=ADMIN, attempt=attempt)
    assert status == 400
    assert "x-grpo-attempt" in answer["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", [], {}, {"version": "17"}, {"version": "2.1"}, {"version": "1." + "1" * 70_000}]
)
async def test_an_admission_that_makes_no_sense_is_refused(client: GuardClient, body: Any) -> None:
    status, _ = await client.call("POST", ADMIT, token=ADMIN, attempt=1, body=body)
    assert status == 400


async def test_a_dead_engine_is_neither_live_nor_ready(client: GuardClient) -> None:
    await admit(client, version="1.0", attempt=1)
    assert (await client.call("GET", LIVE))[0] == 200
    client.vllm.errored = True
    assert (await client.call("GET", LIVE))[0] == 503
    assert (await client.call("GET", READY))[0] == 503


async def test_a_websocket_is_closed_before_it_is_open(client: GuardClient) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await client.guard({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_two_processes_have_two_identities(client: GuardClient) -> None:
    vllm = FakeVLLM()
    other = GuardClient(Guard(vllm), vllm)
    identities = [(await c.call("GET", IDENTITY, token=ADMIN, attempt=1))[1] for c in (client, other)]
    assert identities[0]["instance"] != identities[1]["instance"]
    assert identities[0]["name"] == identities[1]["name"] == "pod-0"


async def test_weights_of_another_attempt_are_not_admitted_for_their_step(client: GuardClient) -> None:
    client.vllm.weight_version = "1.4"
    status, answer = await client.call("POST", ADMIT, token=ADMIN, attempt=2, body={"version": "2.4"})
    assert (status, answer["error"]["message"]) == (409, "engine pod-0 holds weights 1.4, not 2.4")


async def test_a_token_under_another_scheme_is_no_token(client: GuardClient) -> None:
    status, _ = await client.call("GET", IDENTITY, token=ADMIN, scheme="Basic", attempt=1)
    assert status == 401
    status, _ = await client.call("GET", IDENTITY, token=ADMIN, scheme="bearer", attempt=1)
    assert status == 200


async def test_a_body_may_come_in_parts_and_has_a_limit(client: GuardClient) -> None:
    client.vllm.weight_version = "1.0"
    body = json.dumps({"version": "1.0"}).encode()
    status, _ = await client.call("POST", ADMIT, token=ADMIN, attempt=1, body=body, num_parts=3)
    assert status == 200
    body += b" " * MAX_BODY_BYTES
    status, answer = await client.call("POST", ADMIT, token=ADMIN, attempt=1, body=body, num_parts=3)
    assert (status, answer["error"]["message"]) == (400, "the body is longer than 65536 bytes")
