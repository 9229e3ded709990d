"""The page of a run and its completions, for clients inside the pod."""

import http.client
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pod_builder import run_config
from polling import wait_until

from grpo_runtime.report.metrics_file import MetricsFile, MetricsRecord
from grpo_runtime.report.run_file import keep_run_file
from grpo_runtime.report.samples import Sample, SampleTables
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.supervisor.endpoint import Endpoint
from grpo_runtime.supervisor.page_process import FREE_BYTES, MOST_BYTES, MOST_GROUPS, answer
from grpo_runtime.supervisor.pages import PageRefusedError, Pages


def a_run(folder: Path) -> Path:
    """The output directory of a run with two steps and the completions of the second."""
    keep_run_file(folder, run_config())
    metrics = MetricsFile(folder)
    for step in (1, 2):
        metrics.write(MetricsRecord(attempt=1, step=step, time=0.0, values={"reward": 0.5, "step_time": 1.0}))
    metrics.close()
    samples = [
        Sample(
            group=group,
            prompt=f"colour {group}?",
            completion="blue",
            rewards={"match": 1.0},
            reward=1.0,
            advantage=0.5,
            num_tokens=3,
            is_terminated=True,
            policy_versions="1.1",
            engine="rollout-0",
        )
        for group in range(5)
    ]
    record = {"attempt": 1, "step": 2, "time": 0.0, "values": {}, "engines": None, "samples": samples}
    SampleTables(folder, start_step=0).write(StepRecord(**record))
    return folder


def nothing() -> None:
    return None


def serving(pages: Pages | None, *, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(
        progress=lambda: b"{}", metrics=lambda _: b"", positions=nothing, pages=pages, port=0, host=host
    )


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects the processes that the test has started, as the supervisor's main loop does."""
    before = children()
    yield
    for pid in children() - before:
        os.waitpid(pid, 0)


def children() -> set[int]:
    """The processes that this one has started, from whichever thread."""
    lists = Path("/proc/self/task").glob("*/children")
    found = set[int]()
    for each in lists:
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(map(int, each.read_text().split()))
    return found


def get(endpoint: Endpoint, path: str, *, address: str = "127.0.0.1") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, endpoint.port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_a_client_inside_the_pod_gets_the_page_and_the_completions(tmp_path: Path, collected: None) -> None:
    endpoint = serving(Pages(a_run(tmp_path)))
    try:
        status, page = get(endpoint, "/report")
        assert status == 200 and "colour 0?" in page and page.rstrip().endswith("</html>")
        wait_until(lambda: get(endpoint, "/samples?groups=2")[0] == 200, "the first process to have ended")
    finally:
        endpoint.close()


def test_process_1_answers_while_a_page_is_made_and_makes_one_at_a_time(
    tmp_path: Path, collected: None
) -> None:
    waits = "import os; os.write(1, b'x'); os.read(1, 1); os.write(1, b'made')"
    endpoint = serving(Pages(tmp_path, command=(sys.executable, "-c", waits)))
    try:
        with closing(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)) as first:
            first.sendall(b"GET /report HTTP/1.0\r\n\r\n")
            assert first.recv(1) == b"x"
            assert get(endpoint, "/progress") == (200, "{}")
            for page in ("/report", "/samples"):
                status, sentence = get(endpoint, page)
                assert status == 503
                assert "another page of this run is being made" in sentence
            first.sendall(b"x")
            assert b"".join(iter(lambda: first.recv(4096), b"")) == b"made"
    finally:
        endpoint.close()


def test_a_page_that_is_being_made_ends_with_its_server(tmp_path: Path, collected: None) -> None:
    program = (
        "import os, sys; from grpo_runtime.process.lifetime import die_with; die_with(int(sys.argv[-1])); "
        "os.write(1, b'x'); os.read(1, 1)"
    )
    endpoint = serving(Pages(tmp_path, command=(sys.executable, "-c", program)))
    with closing(socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)) as client:
        client.sendall(b"GET /report HTTP/1.0\r\n\r\n")
        assert client.recv(1) == b"x"
        endpoint.close()
        assert client.recv(1) == b""


@pytest.mark.parametrize("client", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "127.0.0.6"])
def test_a_client_outside_of_the_pod_gets_neither(tmp_path: Path, client: str) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs), pytest.raises(PageRefusedError, match="inside this pod") as refused:
        Pages(tmp_path).answer("/report", "", connection=ours, client=client)
    assert refused.value.status == 403


def test_a_pod_without_the_output_of_the_run_has_no_pages() -> None:
    endpoint = serving(None)
    try:
        assert get(endpoint, "/report")[0] == 404
    finally:
        endpoint.close()


def said(output_dir: Path, query: str, *, path: str = "/samples", free: int = FREE_BYTES) -> tuple[int, str]:
    head, _, body = answer(path, query, output_dir=output_dir, free=free).decode().partition("\r\n\r\n")
    assert f"Content-Length: {len(body.encode())}" in head
    return int(head.split()[1]), body


def test_what_is_asked_of_the_completions_is_bounded_and_named(tmp_path: Path) -> None:
    a_run(tmp_path)
    assert said(tmp_path, "")[1].startswith("step 2: 3 of 5 groups")
    assert said(tmp_path, "step=2&groups=5&order=mixed")[1].startswith("step 2: 5 of 5 groups")
    for query, sentence in {
        "groups=0": f"groups (0) must be a number from 1 to {MOST_GROUPS}",
        "groups=65": f"groups (65) must be a number from 1 to {MOST_GROUPS}",
        f"step={'9' * 5000}": f"step ({'9' * 40}) must be a number",
        "order=up": "order (up) must be one of step, best, worst, mixed",
        "file=/etc/passwd": "unknown: file; known are: step, groups, order, eval",
        "step=1": "the completions of step 1 were not kept; those of these steps were: 2",
        "eval=1": "no completions are in",
    }.items():
        status, text = said(tmp_path, query)
        assert (status, text.startswith(sentence)) == (404, True), text


def test_a_run_without_a_step_has_no_page_yet(tmp_path: Path) -> None:
    status, text = said(tmp_path, "", path="/report")
    assert status == 404 and text.startswith(f"no step is finished in {tmp_path}")


def test_an_answer_that_is_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path)
    monkeypatch.setattr("grpo_runtime.supervisor.page_process.MOST_BYTES", 1 << 20)
    status, text = said(tmp_path, "", path="/report")
    assert status == 507 and "MiB, more than the 1 that a pod sends" in text
    assert MOST_BYTES == 64 << 20


def test_a_pod_that_would_run_out_of_memory_makes_no_page(tmp_path: Path) -> None:
    status, text = said(a_run(tmp_path), "", path="/report", free=100 << 20)
    assert (status, "this pod has 100 MiB of memory left" in text) == (404, True)
