"""What the guard makes of a trainer that is replaced while its call is answered."""

import os
from pathlib import Path

import pytest
from fake_vllm import FakeVLLM
from guard_client import GuardClient
from guard_environment import ADMIN, guard_environment

from grpo_runtime.engines.routes import ADMIT_PATH, IDENTITY_PATH, WEIGHT_INFO_PATH
from grpo_runtime.engines.serve.guard import Guard

READY = "/grpo/v1/ready"


@pytest.fixture
def client(tmp_path: Path, run_json: str, monkeypatch: pytest.MonkeyPatch) -> GuardClient:
    for name, value in guard_environment(tmp_path, run_json=run_json).items():
        monkeypatch.setitem(os.environ, name, value)
    vllm = FakeVLLM()
    return GuardClient(Guard(vllm), vllm)


async def admit(client: GuardClient, *, version: str) -> tuple[int, str]:
    """Status, and the sentence of a refusal."""
    attempt = version.partition(".")[0]
    status, answer = await client.call(
        "POST", ADMIT_PATH, token=ADMIN, attempt=attempt, body={"version": version}
    )
    return status, answer["error"]["message"] if "error" in answer else ""


async def test_an_attempt_that_is_replaced_while_the_engine_is_asked_is_not_admitted(
    client: GuardClient,
) -> None:
    async def call_as_a_newer_attempt() -> None:
        await client.call("GET", IDENTITY_PATH, token=ADMIN, attempt=2)

    client.vllm.weight_version = "1.5"
    client.vllm.during[WEIGHT_INFO_PATH] = call_as_a_newer_attempt

    status, sentence = await admit(client, version="1.5")

    assert (status, sentence) == (409, "attempt 1 is over: engine pod-0 belongs to attempt 2")
    assert (await client.call("GET", READY))[0] == 503
    _, identity = await client.call("GET", IDENTITY_PATH, token=ADMIN, attempt=2)
    assert (identity["attempt"], identity["version"]) == (2, "")


async def test_a_newer_attempt_admitted_meanwhile_stays_admitted(client: GuardClient) -> None:
    async def a_newer_attempt_is_admitted() -> None:
        client.vllm.during.clear()
        client.vllm.weight_version = "2.0"
        assert await admit(client, version="2.0") == (200, "")

    client.vllm.weight_version = "1.5"
    client.vllm.during[WEIGHT_INFO_PATH] = a_newer_attempt_is_admitted

    status, sentence = await admit(client, version="1.5")

    # the older one learns that it is over, and not that its engine has other weights
    assert (status, sentence) == (409, "attempt 1 is over: engine pod-0 belongs to attempt 2")
    _, identity = await client.call("GET", IDENTITY_PATH, token=ADMIN, attempt=2)
    assert (identity["attempt"], identity["version"]) == (2, "2.0")


async def test_weights_that_are_finished_while_the_engine_is_asked_are_not_the_ones_admitted(
    client: GuardClient,
) -> None:
    async def newer_weights_come() -> None:
        client.vllm.weight_version = "1.6"

    client.vllm.weight_version = "1.5"
    client.vllm.during[WEIGHT_INFO_PATH] = newer_weights_come
    assert await admit(client, version="1.5") == (409, "engine pod-0 holds weights 1.6, not 1.5")
    assert (await client.call("GET", READY))[0] == 503
