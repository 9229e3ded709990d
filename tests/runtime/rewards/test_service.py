"""A reward behind HTTP, over real sockets: what is posted, what answers mean, and what an outage does."""

import asyncio
import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_reward_service import (
    TIMEOUT_SECONDS,
    body,
    cut_off,
    endless,
    hang,
    raw,
    serving,
    silence,
    status,
    write_certificate,
)
from pod_builder import free_port
from reward_matrix import put_together
from skipping_clock import SkippingClock

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import RewardServiceUnreachableError, UserError
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.service import Patience, ServiceClient, request_body
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    FailureKind,
    OpenCalls,
    Outage,
    RewardFunction,
    RewardRequest,
    RewardService,
)

QUICK = Patience(first_pause=0.01, longest_pause=0.02, total=20.0)
TOKEN = "Bearer a-token-of-the-tests"


def chunk(*completions: str, **columns: list[Any]) -> RewardRequest:
    return RewardRequest(
        prompts=["a="] * len(completions),
        completions=list(completions),
        completion_ids=[[1, 2]] * len(completions),
        prefills=["<think>", *[""] * (len(completions) - 1)],
        columns=columns,
        group_ids=[7] * len(completions),
        step=3,
        total_steps=9,
    )


def function(url: str, *, folder: Path | None = None, **fields: Any) -> RewardFunction:
    secret = None if folder is None else "judge"
    service = RewardService(url=url, job="a-uid", secret=secret, folder=folder)
    return RewardFunction(name="judge", source=service, **{"workers": 4, **fields})


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    return SkippingClock(monkeypatch)


async def ask(function: RewardFunction, *chunks: RewardRequest, patience: Patience = QUICK) -> list[Column]:
    client = ServiceClient(function, function.source, patience=patience)
    await client.start()
    try:
        return list(await asyncio.gather(*map(client.score, chunks)))
    finally:
        await client.close()


def secret(folder: Path, **keys: str) -> Path:
    folder = folder / "secrets" / "judge"
    folder.mkdir(parents=True)
    for key, value in keys.items():
        (folder / key.replace("_", "-")).write_text(value)
    return folder


async def test_a_chunk_is_posted_with_all_that_a_function_gets() -> None:
    async with serving() as service:
        (column,) = await ask(function(service.url), chunk("aa", "b", answer=["x", "x"]))
    assert column == Column(values=[2.0, 1.0])
    (asked,) = service.asked
    key = asked.pop("idempotencyKey")
    assert asked == {
        "protocol": 1,
        "job": "a-uid",
        "reward": "judge",
        "step": 3,
        "totalSteps": 9,
        "groupIds": [7, 7],
        "prompts": ["a=", "a="],
        "completions": ["aa", "b"],
        "completionIds": [[1, 2], [1, 2]],
        "prefills": ["<think>", ""],
        "columns": {"answer": ["x", "x"]},
    }
    assert service.headers[0]["Idempotency-Key"] == key
    assert service.headers[0]["Content-Type"] == "application/json"


async def test_null_means_that_the_reward_does_not_apply_and_what_is_no_number_fails() -> None:
    async with serving() as service:
        service.script = [body({"rewards": [1, None, "high"]})]
        (column,) = await ask(function(service.url), chunk("a", "b", "c"))
    assert column.values == [1.0, None, None]
    (failure,) = column.failures
    assert (failure.kind, failure.num_samples, failure.sample["completion"]) == (FailureKind.REFUSED, 1, "c")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (body([1.0, 2.0]), 'its answer is no object with a list "rewards"'),
        (body({"rewards": [1.0]}), "it answered 1 rewards for 2 completions"),
        (status(200, text="<html>"), "its answer is no JSON"),
        (status(500, text="KeyError: 'answer'"), "KeyError: 'answer'"),
        *((status(number), f"HTTP {number}") for number in (301, 400, 401, 403, 404, 409, 413, 422, 501)),
        (endless, "its answer is longer than 16777216 bytes"),
    ],
)
async def test_an_answer_that_is_no_list_of_rewards_fails_its_chunk_and_no_other(
    answer: Any, reason: str
) -> None:
    async with serving() as service:
        service.script = [answer]
        asked = function(service.url, workers=1)
        failed, fine = await ask(asked, chunk("a", "b"), chunk("ccc"))
    assert failed.values == [None, None]
    assert failed.failures[0].kind is FailureKind.RAISED
    assert reason in failed.failures[0].reason
    assert fine == Column(values=[3.0])
    assert len(service.asked) == 2


async def test_a_chunk_without_an_answer_in_time_has_no_rewards_and_is_not_asked_again(
    clock: SkippingClock,
) -> None:
    async with serving() as service:
        service.script = [silence(clock)]
        late, fine = await ask(
            function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=1), chunk("a"), chunk("bb")
        )
    assert late.values == [None]
    assert late.failures[0].kind is FailureKind.LOST
    assert late.failures[0].reason == f"{service.url} did not answer within 30 s"
    assert fine.values == [2.0]


async def test_a_service_that_answers_nothing_of_a_step_is_asked_again_until_it_does(
    clock: SkippingClock,
) -> None:
    async with serving() as service:
        service.script = [silence(clock, of=3)] * 3
        texts = ("a", "bb", "ccc")
        columns = await ask(function(service.url, timeout_seconds=TIMEOUT_SECONDS), *map(chunk, texts))
    assert columns == [Column(values=[1.0]), Column(values=[2.0]), Column(values=[3.0])]
    assert len({asked["idempotencyKey"] for asked in service.asked}) == 3 < len(service.asked)


async def test_a_service_that_hangs_for_longer_than_our_patience_ends_the_attempt_as_transient() -> None:
    async with serving() as service:
        service.script = [hang] * 100
        patience = Patience(first_pause=0.01, longest_pause=0.01, total=0.5)
        silent = function(service.url, timeout_seconds=0.2)
        with pytest.raises(RewardServiceUnreachableError, match=r"no answer within timeoutSeconds, 0\.2 s"):
            await ask(silent, chunk("a"), chunk("b"), patience=patience)


async def test_an_evaluation_that_was_answered_does_not_hide_an_outage_in_the_step_behind_it(
    clock: SkippingClock,
) -> None:
    """Both follow the same number of finished steps."""
    async with serving() as service:
        service.script = [body({"rewards": [1]}), silence(clock), silence(clock)]
        # one after the other
        asked = function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=1)
        evaluation, *step = replace(chunk("a"), is_evaluation=True), chunk("bb"), chunk("ccc")
        columns = await ask(asked, evaluation, *step)
    assert [column.values for column in columns] == [[1.0], [None], [3.0]]
    assert len(service.asked) == 4


async def test_an_evaluation_without_an_answer_makes_no_outage_of_one_call_of_the_step_behind_it(
    clock: SkippingClock,
) -> None:
    async with serving() as service:
        service.script = [silence(clock), silence(clock)]
        asked = function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=1)
        late = await ask(asked, replace(chunk("a"), is_evaluation=True), chunk("b"))
    assert [column.failures[0].kind for column in late] == [FailureKind.LOST, FailureKind.LOST]
    assert len(service.asked) == 2


async def test_groups_without_an_answer_in_a_step_that_has_answers_are_not_asked_again(
    clock: SkippingClock,
) -> None:
    async with serving() as service:
        service.script = [body({"rewards": [1]}), *[silence(clock, of=2)] * 2]
        asked = function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=2)
        columns = await ask(asked, chunk("a"), chunk("b"), chunk("c"))
    # two are sent at the same time
    assert sorted(str(column.values) for column in columns) == ["[1.0]", "[None]", "[None]"]
    assert len(service.asked) == 3


async def test_a_step_that_has_answers_keeps_them_while_another_one_is_asked_for(
    clock: SkippingClock,
) -> None:
    """Of two steps in flight the chunks come in any order."""
    async with serving() as service:
        service.script = [body({"rewards": [1]}), silence(clock), silence(clock), silence(clock)]
        asked = function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=1)
        other = replace(chunk("b"), step=4)
        columns = await ask(asked, chunk("a"), other, chunk("c"), chunk("d"))
    assert [column.values for column in columns] == [[1.0], [None], [None], [None]]
    assert len(service.asked) == 4


async def test_chunks_of_two_steps_that_are_asked_for_at_the_same_time_count_together(
    clock: SkippingClock,
) -> None:
    async with serving() as service:
        service.script = [silence(clock, of=2)] * 2
        asked = function(service.url, timeout_seconds=TIMEOUT_SECONDS, workers=2)
        columns = await ask(asked, chunk("a"), replace(chunk("bb"), step=4))
    assert [column.values for column in columns] == [[1.0], [2.0]]
    async with serving() as service:
        service.script = [hang, hang, body({"rewards": [3]})]
        asked = function(service.url, timeout_seconds=0.5, workers=3)
        columns = await ask(asked, chunk("a"), chunk("b"), replace(chunk("ccc"), step=4))
    assert sorted(str(column.values) for column in columns) == ["[3.0]", "[None]", "[None]"]
    assert len(service.asked) == 3


@pytest.mark.parametrize("number", [408, 429, 502, 503, 504])
async def test_a_service_that_is_overloaded_is_asked_again_with_the_same_key(number: int) -> None:
    async with serving() as service:
        service.script = [status(number), cut_off, status(number)]
        (column,) = await ask(function(service.url), chunk("aaa"))
    assert column == Column(values=[3.0])
    assert len(service.asked) == 4
    assert len({asked["idempotencyKey"] for asked in service.asked}) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_a_service_whose_answer_is_not_http_is_asked_again_with_the_same_key(content: bytes) -> None:
    async with serving() as service:
        service.script = [raw(content), raw(content)]
        (column,) = await ask(function(service.url), chunk("aaa"))
    assert column == Column(values=[3.0])
    assert len(service.asked) == 3
    assert len({asked["idempotencyKey"] for asked in service.asked}) == 1


async def test_answers_that_stay_rubbish_end_the_attempt_as_an_outage_does_and_show_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = secret(tmp_path, Authorization=TOKEN)
    async with serving() as service:
        service.script = [raw(f"Authorization {TOKEN}\r\n\r\n".encode())] * 1000
        asked = function(service.url, folder=folder)
        with pytest.raises(RewardServiceUnreachableError, match="its answer is not HTTP") as refusal:
            await ask(asked, chunk("a"), patience=replace(QUICK, total=0.2))
    assert TOKEN in service.headers[0]["Authorization"]
    assert TOKEN not in "".join(traceback.format_exception(refusal.value)) + caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"step": 4},
        {"total_steps": 10},
        {"group_ids": [8]},
        {"prompts": ["b="]},
        {"completions": ["b"]},
        {"completion_ids": [[1, 3]]},
        {"columns": {"answer": ["y"]}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_request_that_differs_in_anything_has_another_key(other: dict[str, Any]) -> None:
    one = chunk("a", answer=["x"])
    _, key = request_body(one, name="judge", job="a-uid")
    assert request_body(chunk("a", answer=["x"]), name="judge", job="a-uid")[1] == key
    assert request_body(replace(one, **other), name="judge", job="a-uid")[1] != key
    assert request_body(one, name="other", job="a-uid")[1] != key
    assert request_body(one, name="judge", job="b-uid")[1] != key


async def test_a_service_that_starts_late_is_waited_for() -> None:
    port = free_port()
    asked = asyncio.create_task(ask(function(f"http://localhost:{port}/score"), chunk("aa")))
    async with asyncio.timeout(20):
        await asyncio.sleep(0)
        async with serving(port=port):
            (column,) = await asked
    assert column.values == [2.0]


async def test_an_outage_that_lasts_ends_the_attempt_as_transient() -> None:
    url = f"http://localhost:{free_port()}/score"
    patience = Patience(first_pause=0.01, longest_pause=0.01, total=0.1)
    with pytest.raises(
        RewardServiceUnreachableError, match=f"judge: the service {url} was out of reach"
    ) as end:
        await ask(function(url), chunk("a"), patience=patience)
    assert (end.value.exit_code, end.value.reason) == (ExitCode.TRANSIENT, "RewardServiceUnreachable")


async def test_an_outage_is_told_of_until_the_service_answers() -> None:
    seen: list[list[OpenCalls]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(pool.open_calls())
        return web.json_response({"rewards": [2]})

    async with serving() as service:
        service.script = [answer, status(503), answer, answer]
        async with RewardPool((function(service.url, workers=1),)) as pool:
            await asyncio.gather(*(pool.submit(chunk(name)) for name in ("aa", "bb", "cc")))
            after = pool.open_calls()
    assert [seen[0], seen[2]] == [[OpenCalls(name="judge", number=number)] for number in (3, 1)]
    (calls,) = seen[1]
    assert calls.outage is not None and 0 < calls.outage.seconds < 60
    assert replace(calls.outage, seconds=0) == Outage(url=service.url, why="HTTP 503", seconds=0)
    assert (calls.number, after) == (2, [])


async def test_an_outage_is_as_old_as_the_first_chunk_that_found_it() -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Queue[tuple[Outage | None, float]]()

    async def unavailable(request: web.Request) -> web.StreamResponse:
        now = loop.time()
        seen.put_nowait((client.outage, now))
        return web.Response(status=503)

    async with serving() as service:
        service.script = [unavailable] * 20
        judge = function(service.url)
        assert judge.source is not None
        client = ServiceClient(judge, judge.source, patience=QUICK)
        await client.start()
        first = asyncio.ensure_future(client.score(chunk("aa")))
        for _ in range(4):
            _, second_began = await seen.get()
        await asyncio.gather(first, client.score(chunk("bb")))
        await client.close()
    assert seen.qsize() > 4
    while not seen.empty():
        outage, now = seen.get_nowait()
        assert outage is not None and outage.seconds > now - second_began


async def test_an_answer_that_is_an_error_of_the_service_ends_an_outage_too() -> None:
    async with serving() as service:
        service.script = [status(503), status(500, text="KeyError")]
        judge = function(service.url)
        assert judge.source is not None
        client = ServiceClient(judge, judge.source, patience=QUICK)
        await client.start()
        await client.score(chunk("a"))
        assert client.outage is None
        await client.close()


async def test_headers_come_from_the_secret_as_it_is_now_and_are_in_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = secret(tmp_path, Authorization=f"{TOKEN}\n", X_Team="red-team")
    (folder / "..data").mkdir()
    async with serving() as service:
        client_of = function(service.url, folder=folder, workers=1)
        service.script = [status(503, text=TOKEN), status(403, text=f"no access with {TOKEN}")]
        client = ServiceClient(client_of, client_of.source, patience=QUICK)
        await client.start()
        with caplog.at_level(logging.DEBUG):
            refused = await client.score(chunk("a"))
            (folder / "Authorization").write_text("Bearer another")
            await client.score(chunk("b"))
        await client.close()
    assert [headers["Authorization"] for headers in service.headers] == [TOKEN, TOKEN, "Bearer another"]
    assert service.headers[0]["X-Team"] == "red-team"
    assert refused.failures[0].reason.startswith(f"HTTP 403 of {service.url}: no access with ***")
    assert "a-token-of-the-tests" not in repr(refused) + repr(client_of) + caplog.text


async def test_a_secret_that_is_not_mounted_or_no_header_ends_the_start(tmp_path: Path) -> None:
    missing = function("http://localhost/score", folder=tmp_path / "secrets" / "judge")
    with pytest.raises(UserError, match="Secret judge of http://localhost/score is not mounted"):
        await ask(missing)
    folder = secret(tmp_path, Authorization="two\nlines")
    with pytest.raises(UserError, match="key Authorization of the Secret judge is no header"):
        await ask(function("http://localhost/score", folder=folder))


async def test_a_certificate_is_trusted_when_the_secret_holds_its_authority(tmp_path: Path) -> None:
    certificate, public = write_certificate(tmp_path)
    folder = secret(tmp_path)
    (folder / "ca.crt").write_text(public)
    async with serving(certificate=certificate) as service:
        (column,) = await ask(function(service.url, folder=folder), chunk("aa"))
        with pytest.raises(UserError, match=r"cannot be trusted: put the authority .* under ca\.crt"):
            await ask(function(service.url), chunk("aa"))
    assert column.values == [2.0]
    assert "ca.crt" not in service.headers[0]
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(UserError, match=r"key ca\.crt of the Secret judge is no certificate in PEM"):
        await ask(function(service.url, folder=folder))


async def test_a_function_that_ends_the_scoring_of_a_chunk_leaves_no_call_of_the_others_behind(
    tmp_path: Path,
) -> None:
    """Training may continue, after an evaluation: the next step would wait behind it."""
    certificate, _ = write_certificate(tmp_path)
    async with serving(certificate=certificate) as untrusted, serving() as silent:
        silent.script = [hang]
        functions = (function(untrusted.url), replace(function(silent.url, timeout_seconds=600), name="slow"))
        async with RewardPool(functions) as pool:
            with pytest.raises(UserError, match="cannot be trusted"):
                await pool.submit(chunk("a"))
            assert pool.open_calls() == []


async def test_a_service_is_asked_for_as_many_chunks_at_a_time_as_the_job_says() -> None:
    async with serving() as service:
        columns = await ask(function(service.url, workers=3), *(chunk("a" * n) for n in range(1, 12)))
    assert [column.values for column in columns] == [[float(n)] for n in range(1, 12)]
    assert 1 < service.most_at_once <= 3


async def test_a_column_that_json_cannot_hold_fails_its_chunk() -> None:
    async with serving() as service:
        (column,) = await ask(function(service.url), chunk("a", level=[float("nan")]))
    assert column.values == [None]
    assert "a column cannot be written as JSON" in column.failures[0].reason
    assert service.asked == []


async def test_a_service_is_a_column_beside_other_rewards() -> None:
    async with serving() as service:
        functions = (
            RewardFunction(name="exact", source=BuiltinFunction(name="exact_match")),
            function(service.url),
        )
        async with RewardPool(functions) as pool:
            scored = await asyncio.gather(*(pool.submit(chunk(text, answer=["aa"])) for text in ("aa", "b")))
            matrix = put_together(pool, scored, step=0)
    assert matrix.values == ((1.0, 2.0), (0.0, 1.0))
    assert matrix.names == ("exact", "judge")
