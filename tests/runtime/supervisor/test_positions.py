"""Where the training processes of all pods are, as their supervisors tell each other."""

import dataclasses
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pod_builder import run_config, trainer_environment

from grpo_runtime.report.position import OwnPosition, position_path
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.supervisor.endpoint import Endpoint
from grpo_runtime.supervisor.positions import (
    PodPositions,
    RankPosition,
    addresses_of,
    ask_other_pods,
    describe,
    positions_of_pod,
)

NODES, RANKS = 3, 2
SERVICE = "copy-trainer"


def settings(folder: Path, *, index: int = 0) -> TrainerSettings:
    run = run_config(trainer={"numNodes": NODES, "processesPerNode": RANKS})
    found = read_trainer_settings(trainer_environment(folder, run, node_index=index))
    return dataclasses.replace(found, master_addr=f"copy-trainer-a1-0.{SERVICE}")


def at(folder: Path, what: str, *, local_rank: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    OwnPosition(position_path(folder, local_rank)).at(what)


def position(rank: int, doing: str = "waits for the other ranks", *, state: str = "S") -> RankPosition:
    return RankPosition(rank=rank, state=state, doing=doing)


def pod(index: int, *positions: RankPosition, attempt: int = 1) -> PodPositions:
    return PodPositions(attempt=attempt, node_index=index, positions=positions)


def test_a_pod_tells_its_ranks_by_their_numbers_among_all(tmp_path: Path) -> None:
    second = settings(tmp_path, index=1)
    at(second.run_dir, "loads the model", local_rank=0)
    at(second.run_dir, "computes gradients", local_rank=1)
    found = positions_of_pod(second)
    assert (found.attempt, found.node_index) == (1, 1)
    assert [(each.rank, each.doing) for each in found.positions] == [
        (2, "loads the model"),
        (3, "computes gradients"),
    ]
    assert {each.state for each in found.positions} <= {"R", "S"}


def test_a_process_that_has_ended_is_nowhere(tmp_path: Path) -> None:
    own = settings(tmp_path)
    own.run_dir.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        at(own.run_dir, "updates the weights", local_rank=0)
        os._exit(0)
    os.waitpid(pid, 0)
    assert positions_of_pod(own).positions == ()


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("R", "rank 1 computes gradients"),
        ("T", "rank 1 is stopped (by SIGSTOP) while it computes gradients"),
        ("t", "rank 1 is held by a debugger while it computes gradients"),
        ("D", "rank 1 hangs in the kernel, mostly on a volume or a device, while it computes gradients"),
    ],
)
def test_what_holds_a_process_is_said(state: str, sentence: str) -> None:
    assert describe([pod(0, position(1, "computes gradients", state=state))]) == sentence


def test_who_holds_the_others_up_comes_first() -> None:
    pods = [
        pod(0, position(0), position(1, "computes gradients")),
        pod(1, position(2, state="T"), position(3, "updates the weights", state="D")),
        pod(2, position(4)),
    ]
    first, *others = describe(pods).split("; ")
    assert first == "rank 2 is stopped (by SIGSTOP) while it waits for the other ranks"
    assert others[0].startswith("rank 3 hangs in the kernel")
    assert others[1:] == ["rank 1 computes gradients", "rank 0 waits for the other ranks", "1 more ranks"]


def test_pods_that_do_not_answer_are_named() -> None:
    found = describe([pod(0, position(0))], silent=[1, 2])
    assert found.endswith("; trainer pod 1 does not answer; trainer pod 2 does not answer")


def three_addresses(host: str) -> list[str]:
    """Of which one is nobody's."""
    assert host == SERVICE
    return ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def served(pods: dict[str, Endpoint], tmp_path: Path, *, index: int, port: int = 0) -> Endpoint:
    host = f"127.0.0.{index + 1}"
    of_pod = settings(tmp_path, index=index)
    pods[host] = Endpoint(
        progress=lambda: None,
        metrics=lambda _: b"",
        positions=lambda: positions_of_pod(of_pod).model_dump_json(by_alias=True).encode(),
        port=port,
        host=host,
    )
    return pods[host]


@pytest.fixture
def pods() -> Iterator[dict[str, Endpoint]]:
    made: dict[str, Endpoint] = {}
    yield made
    for each in made.values():
        each.close()


def test_the_first_pod_asks_the_others_and_not_itself(
    tmp_path: Path, pods: dict[str, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_runtime.supervisor.positions._TIMEOUT_SECONDS", 60.0)
    at(settings(tmp_path, index=1).run_dir, "updates the weights", local_rank=1)
    port = served(pods, tmp_path, index=0).port
    served(pods, tmp_path, index=1, port=port)
    [other] = ask_other_pods(settings(tmp_path), port=port, resolve=three_addresses)
    assert other.node_index == 1
    assert [(each.rank, each.doing) for each in other.positions] == [(3, "updates the weights")]


@pytest.mark.parametrize(
    "answer",
    [
        b"not json",
        b'{"attempt": 2, "nodeIndex": 1, "positions": []}',
        b'{"attempt": 1, "nodeIndex": 1, "positions": [{"rank": 2, "state": "S", "doing": "%s"}]}'
        % (b"x" * 300),
        b"[" * 100_000,
    ],
    ids=["no JSON", "another attempt", "too long", "deep"],
)
def test_an_answer_that_is_none_is_left_out(tmp_path: Path, answer: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            found = ask_other_pods(
                settings(tmp_path), port=server.server_port, resolve=lambda host: ["127.0.0.1"]
            )
        finally:
            server.shutdown()
            thread.join()
    assert found == []


def test_a_service_that_is_not_found_is_no_error(tmp_path: Path) -> None:
    def lookup(host: str) -> list[str]:
        raise socket.gaierror("no such name")

    assert ask_other_pods(settings(tmp_path), resolve=lookup) == []


def test_a_name_resolves_to_its_addresses() -> None:
    assert "127.0.0.1" in addresses_of("localhost")
