"""The supervisor's endpoint while others flood it."""

import errno
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from polling import wait_until

from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.report.progress import PROGRESS_FILE
from grpo_runtime.supervisor.endpoint import MAX_CONNECTIONS, MAX_REQUEST_BYTES, Endpoint

REPORT = b'{"step": 3}'
HUNG_SECONDS = 60.0
"""A machine that is busy with other tests may need seconds for an answer."""


NUM_UNREAD = 100
"""Answers that nobody reads: a second for each would be longer than that."""


def serving(folder: Path, *, host: str = ANY_ADDRESS, port: int = 0) -> Endpoint:
    def nothing() -> None:
        return None

    report = folder / PROGRESS_FILE
    return Endpoint(
        progress=report.read_bytes,
        metrics=lambda num_engines: f"{num_engines}".encode(),
        positions=nothing,
        port=port,
        host=host,
    )


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    (tmp_path / PROGRESS_FILE).write_bytes(REPORT)
    made = serving(tmp_path, host="127.0.0.1")
    yield made
    made.close()


def poll(endpoint: Endpoint, path: str = "/progress") -> bytes:
    """Ask as the operator does."""
    with closing(http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=HUNG_SECONDS)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read()


def connect(endpoint: Endpoint, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", endpoint.port), timeout=HUNG_SECONDS)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; waits until it does."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def threads() -> set[str]:
    """The threads of this process, of which those of earlier tests may end at any time."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


def num_sockets() -> int:
    num_found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            num_found += str(descriptor.readlink()).startswith("socket:")
    return num_found


@pytest.mark.parametrize("sent", [b"", b"GET /progress HTTP/1.1\r\nHost: x\r\n"], ids=["idle", "half"])
def test_hundreds_of_waiting_connections_take_no_thread_and_keep_no_poll_out(
    endpoint: Endpoint, sent: bytes
) -> None:
    poll(endpoint)
    before, sockets = threads(), num_sockets()
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(closing(connect(endpoint, sent))) for _ in range(MAX_CONNECTIONS + 100)
        ]
        assert [poll(endpoint) for _ in range(5)] == [REPORT] * 5
        assert threads() - before == set()
        # Both ends are in this process.
        assert num_sockets() - sockets <= len(waiting) + MAX_CONNECTIONS
        assert is_closed(waiting[0]), "the oldest made room"


def test_requests_as_fast_as_they_can_be_sent_keep_no_poll_out(endpoint: Endpoint) -> None:
    before, stop = threads(), threading.Event()
    num_answered = [0] * 8

    def flood(number: int) -> None:
        while not stop.is_set():
            assert poll(endpoint) == REPORT
            num_answered[number] += 1

    flooding = [threading.Thread(target=flood, args=(number,)) for number in range(len(num_answered))]
    for thread in flooding:
        thread.start()
    try:
        wait_until(lambda: min(num_answered) >= 20, "each client to have 20 answers")
        assert poll(endpoint) == REPORT
        assert len(threads() - before) == len(flooding)
    finally:
        stop.set()
        for thread in flooding:
            thread.join()


def test_a_client_that_takes_too_long_to_ask_is_cut_off(endpoint: Endpoint) -> None:
    with closing(connect(endpoint, b"GET /prog")) as slow:
        assert is_closed(slow)


def test_a_request_that_comes_in_pieces_is_answered(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_runtime.supervisor.endpoint.REQUEST_SECONDS", HUNG_SECONDS)
    with closing(connect(endpoint, b"GET /healthz HT")) as connection:
        assert poll(endpoint) == REPORT
        connection.sendall(b"TP/1.1\r\nHost: x\r\n\r")
        assert poll(endpoint) == REPORT
        connection.sendall(b"\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b"ok\n")


def test_a_request_without_end_is_cut_off_at_its_limit(endpoint: Endpoint) -> None:
    with closing(connect(endpoint)) as endless:
        try:
            while True:
                endless.sendall(b"x" * MAX_REQUEST_BYTES)
        except OSError as error:
            assert error.errno in (errno.ECONNRESET, errno.EPIPE)
    assert poll(endpoint) == REPORT


def test_an_answer_that_nobody_reads_holds_nobody_up(endpoint: Endpoint, tmp_path: Path) -> None:
    large = b"x" * 60_000
    (tmp_path / PROGRESS_FILE).write_bytes(large)
    with ExitStack() as stack:
        for _ in range(NUM_UNREAD):
            connection = stack.enter_context(closing(socket.socket()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.connect(("127.0.0.1", endpoint.port))
            connection.sendall(b"GET /progress HTTP/1.1\r\n\r\n")
        assert poll(endpoint) == large


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /progress HTTP/9.9\r\n\r\n",
        b"POST /progress HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
        b"GET /progress HTTP/1.1\r\nExpect: 100-continue\r\nConnection: keep-alive\r\n\r\n",
        b"GET /progress HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"\xff\x00\xfe\x00 /\x00 HTTP/1.1\r\n\r\n",
    ],
    ids=["nothing", "no path", "version", "body", "expect", "headers", "bytes"],
)
def test_a_strange_request_ends_with_its_connection(endpoint: Endpoint, sent: bytes) -> None:
    with closing(connect(endpoint, sent)) as connection:
        while not is_closed(connection):
            pass
    assert poll(endpoint) == REPORT


def test_a_report_that_cannot_be_read_is_logged_and_the_next_one_is_served(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / PROGRESS_FILE).unlink()
    (tmp_path / PROGRESS_FILE).mkdir()
    with pytest.raises(http.client.RemoteDisconnected):
        poll(endpoint)
    assert "could not be answered" in caplog.text and "IsADirectoryError" in caplog.text
    (tmp_path / PROGRESS_FILE).rmdir()
    (tmp_path / PROGRESS_FILE).write_bytes(REPORT)
    assert poll(endpoint) == REPORT


def test_without_an_address_it_listens_to_both_versions_of_ip(tmp_path: Path) -> None:
    made = serving(tmp_path)
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, made.port), timeout=30).close()
    made.close()


def test_after_it_is_closed_its_port_is_free(tmp_path: Path) -> None:
    first = serving(tmp_path, host="127.0.0.1")
    with closing(connect(first)) as waiting:
        first.close()
        assert is_closed(waiting)
    serving(tmp_path, host="127.0.0.1", port=first.port).close()


def test_it_knows_when_the_progress_was_last_asked_for(endpoint: Endpoint) -> None:
    assert endpoint.asked_at is None
    before = time.monotonic()
    poll(endpoint)
    assert endpoint.asked_at is not None and before <= endpoint.asked_at <= time.monotonic()


def test_the_metrics_know_how_many_engines_the_operator_has_said_last(endpoint: Endpoint) -> None:
    assert poll(endpoint, "/metrics") == b"None"
    for number in ("4", "2"):
        assert poll(endpoint, f"/progress?engines={number}") == REPORT
        assert poll(endpoint, "/metrics") == number.encode()
    for query in ("", "?engines=many", "?engines=", "?engines=-1", "?engines=" + "1" * 5000):
        assert poll(endpoint, f"/progress{query}") == REPORT
        assert poll(endpoint, "/metrics") == b"2"
