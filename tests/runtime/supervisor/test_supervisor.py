"""The supervisor with ranks that are shell scripts: fast, and no torch anywhere."""

import functools
import json
import os
import signal
import urllib.error
from pathlib import Path

import pytest
from pod_builder import run_config
from polling import wait_until
from scripted_supervisor import (
    DONE,
    LONG_WAIT_FOR_CAUSE,
    LONG_WAIT_FOR_PEERS,
    ONE_RANK,
    Supervisor,
    has_ended,
    importing,
)

from grpo_api.contract.environment import Env
from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_runtime.errors import PeerLostError
from grpo_runtime.process.failure import describe_failure
from grpo_runtime.supervisor.fork_server import find_ranks
from grpo_runtime.supervisor.supervisor import _CAUSE_MAY_FOLLOW_SECONDS

EXPLANATION = describe_failure(PeerLostError("another rank is gone"))
ABORT = (
    f"""echo '{EXPLANATION.model_dump_json(by_alias=True, exclude_none=True)}' """
    """> "$2/abort-$LOCAL_RANK.json"; kill -ABRT $$"""
)
"""A rank that NCCL ends, which said before what that would mean."""


def test_every_rank_gets_its_place_in_the_rendezvous(tmp_path: Path) -> None:
    script = f'env > "$2/env-$LOCAL_RANK"; [ $LOCAL_RANK = 0 ] || exit 0; {DONE}'
    supervisor = Supervisor(tmp_path, script)
    code, message = supervisor.end()
    assert (code, message.reason) == (0, "Done")
    for rank in (0, 1):
        text = (tmp_path / f"cache-1-0/run/env-{rank}").read_text()
        environment = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == "2"
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.1", "29500")
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["SUPERVISOR_PID"] == str(supervisor.process.pid)


def test_ranks_of_a_second_node_come_after_those_of_the_first(tmp_path: Path) -> None:
    run = run_config(trainer={"numNodes": 2, "processesPerNode": 2})
    script = 'echo $RANK $LOCAL_RANK $WORLD_SIZE > "$2/$LOCAL_RANK"'
    supervisor = Supervisor(tmp_path, script, run=run, node_index=1)
    assert supervisor.end()[0] == 0
    assert (supervisor.run_dir / "0").read_text() == "2 0 4\n"
    assert (supervisor.run_dir / "1").read_text() == "3 1 4\n"


def test_the_first_failure_ends_the_others_and_is_the_pods_exit_code(tmp_path: Path) -> None:
    words = json.dumps({"reason": "UserError", "message": "the spec is wrong", "exitCode": 40})
    script = f"""
        if [ $LOCAL_RANK = 1 ]; then echo '{words}' > "$2/error-1.json"; exit 40; fi
        sleep 600 & wait
    """
    code, message = Supervisor(tmp_path, script).end()
    assert code == 40
    assert (message.reason, message.message, message.rank) == ("UserError", "the spec is wrong", 1)


def test_a_killed_rank_is_128_plus_its_signal(tmp_path: Path) -> None:
    script = "if [ $LOCAL_RANK = 1 ]; then kill -9 $$; fi; sleep 600 & wait"
    code, message = Supervisor(tmp_path, script).end()
    assert (code, message.reason, message.rank) == (137, "Killed", 1)


def test_a_rank_that_nccl_aborts_is_told_as_what_follows_from_a_lost_rank(tmp_path: Path) -> None:
    of_its_own = 'until [ -s "$2/abort-0.json" ]; do :; done; exit 40'
    script = f"if [ $LOCAL_RANK = 0 ]; then {ABORT}; else {of_its_own}; fi"
    code, message = Supervisor(tmp_path, script, before=LONG_WAIT_FOR_CAUSE).end()
    assert (code, message.rank) == (40, 1)


def test_an_abort_by_nccl_on_a_pod_without_the_cause_says_so(tmp_path: Path) -> None:
    code, message = Supervisor(tmp_path, ABORT, run=ONE_RANK).end()
    assert (code, message.reason, message.message) == (75, "PeerLost", "another rank is gone")


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    script = "trap '' TERM; touch $2/up-$LOCAL_RANK; while true; do sleep 0.1; done"
    supervisor = Supervisor(tmp_path, script, run=ONE_RANK, grace_seconds=1.0)
    supervisor.wait_for(supervisor.run_dir / "up-0")
    supervisor.process.send_signal(signal.SIGTERM)
    code, message = supervisor.end()
    assert (code, message.reason) == (143, "Terminated")


SHORT_WAIT_FOR_PEERS = LONG_WAIT_FOR_PEERS.replace("600.0", "2.0")


@pytest.mark.parametrize(
    ("grace_seconds", "before"), [(1.0, LONG_WAIT_FOR_PEERS), (600.0, SHORT_WAIT_FOR_PEERS)]
)
def test_a_stop_gives_no_more_time_to_ranks_that_have_some_after_one_has_failed(
    tmp_path: Path, grace_seconds: float, before: str
) -> None:
    stubborn = "trap 'touch $2/told' TERM; touch $2/up; while true; do sleep 0.1; done"
    failing = "until [ -e $2/up ]; do sleep 0.05; done; exit 40"
    script = f"if [ $LOCAL_RANK = 0 ]; then {stubborn}; else {failing}; fi"
    supervisor = Supervisor(tmp_path, script, grace_seconds=grace_seconds, before=before)
    supervisor.wait_for(supervisor.run_dir / "told")
    supervisor.process.send_signal(signal.SIGTERM)
    supervisor.end()


def test_sigterm_reaches_every_rank(tmp_path: Path) -> None:
    script = "trap 'touch $2/stopped-$LOCAL_RANK; exit 143' TERM; touch $2/up-$LOCAL_RANK; sleep 600 & wait"
    supervisor = Supervisor(tmp_path, script)
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"up-{rank}")
    supervisor.process.send_signal(signal.SIGTERM)
    code, _ = supervisor.end()
    assert code == 143
    assert all((supervisor.run_dir / f"stopped-{rank}").exists() for rank in (0, 1))


def test_a_rank_that_fails_after_a_stop_has_no_second_sigterm_sent_to_one_that_still_saves(
    tmp_path: Path,
) -> None:
    saving = f"""
        trap 'echo one >> "$2/stops"' TERM; touch $2/up-0
        until [ -s "$2/stops" ]; do sleep 0.05; done
        sleep {2 * _CAUSE_MAY_FOLLOW_SECONDS}; exit 143"""
    failing = "trap 'exit 40' TERM; touch $2/up-1; sleep 600 & wait"
    supervisor = Supervisor(tmp_path, f"if [ $LOCAL_RANK = 0 ]; then {saving}; else {failing}; fi")
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"up-{rank}")
    supervisor.process.send_signal(signal.SIGTERM)
    supervisor.end()
    assert (supervisor.run_dir / "stops").read_text() == "one\n"


def test_the_endpoint_answers_whatever_the_ranks_do(tmp_path: Path) -> None:
    script = "touch $2/up; kill -STOP $$"  # it cannot do anything then
    supervisor = Supervisor(tmp_path, script, run=ONE_RANK, grace_seconds=1.0)
    supervisor.wait_for(supervisor.run_dir / "up")
    wait_until(functools.partial(answers, supervisor), "/healthz to answer")
    assert supervisor.get("/healthz") == b"ok\n"
    progress = Progress.model_validate_json(supervisor.get("/progress"))
    assert (progress.state, progress.step, progress.attempt) == ("Starting", 0, 1)
    assert supervisor.get("/metrics") == b"", "to Prometheus a pod before its first step is up"
    with pytest.raises(urllib.error.HTTPError):
        supervisor.get("/run.json")
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.end()[0] == 143


def test_an_error_of_the_fork_server_is_the_failure_of_the_pod(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "", ranks=importing("raise ImportError('no libcuda')"))
    code, message = supervisor.end()
    assert (code, message.rank, message.reason) == (1, 0, "UnexpectedError")
    assert message.message.startswith("ImportError in ") and "no libcuda" in message.message


def test_a_killed_fork_server_is_the_failure_of_the_pod(tmp_path: Path) -> None:
    code, message = Supervisor(tmp_path, "", ranks=importing("os.kill(os.getpid(), 9)")).end()
    assert (code, message.reason, message.rank) == (137, "Killed", 0)


def test_a_stop_ends_a_fork_server_that_still_imports(tmp_path: Path) -> None:
    supervisor = Supervisor(
        tmp_path, "", ranks=importing("(run_dir / 'importing').touch(); signal.sigwait({signal.SIGUSR1})")
    )
    supervisor.wait_for(supervisor.run_dir / "importing")
    supervisor.process.send_signal(signal.SIGTERM)
    code, message = supervisor.end()
    assert (code, message.reason) == (143, "Terminated")
    assert "in time" not in message.message, "it had to be killed"


BETWEEN_TWO_FORKS = """
    def wait():
        if not (run_dir / "forked").exists():
            (run_dir / "forked").touch()
            (run_dir.parents[1] / "pipe").read_bytes()
    os.register_at_fork(after_in_parent=wait)
"""
"""Waits for the test to write into a named pipe."""


def stopped_between_two_forks(tmp_path: Path, code: str = "") -> tuple[int, TerminationMessage]:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    supervisor = Supervisor(tmp_path, "sleep 600 & wait", ranks=importing(BETWEEN_TWO_FORKS.lstrip() + code))
    supervisor.wait_for(supervisor.run_dir / "forked")
    supervisor.process.send_signal(signal.SIGTERM)
    fork_server = supervisor.fork_server()
    wait_until(lambda: has_a_pending_stop(fork_server), "SIGTERM to arrive")
    pipe.write_bytes(b"")
    return supervisor.end()


def test_a_stop_that_comes_between_two_forks_reaches_the_ranks(tmp_path: Path) -> None:
    code, message = stopped_between_two_forks(tmp_path)
    assert (code, message.reason) == (143, "Terminated")
    assert "in time" not in message.message, "they had to be killed"


def test_a_rank_that_ended_before_it_was_adopted_is_sent_no_signal(tmp_path: Path) -> None:
    first_died = """
    forks = []
    os.register_at_fork(before=lambda: forks.append(None))
    os.register_at_fork(after_in_child=lambda: len(forks) == 1 and os._exit(7))
"""
    code, message = stopped_between_two_forks(tmp_path, first_died)
    assert (code, message.rank) == (7, 0)


def test_ranks_whose_fork_server_was_killed_do_not_begin(tmp_path: Path) -> None:
    killed = """
    reading, writing = os.pipe()
    def leave_id():
        (run_dir / f"forked-{os.getpid()}").touch()
        os.write(writing, b".")
    def die():
        os.read(reading, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.register_at_fork(after_in_child=leave_id, after_in_parent=die)
"""
    supervisor = Supervisor(tmp_path, "touch $2/began; sleep 600 & wait", ranks=importing(killed.lstrip()))
    code, message = supervisor.end()
    assert (code, message.reason) == (137, "Killed")
    [forked] = supervisor.run_dir.glob("forked-*")
    wait_until(lambda: has_ended(int(forked.name.partition("-")[2])), "the rank to end")
    assert not (supervisor.run_dir / "began").exists()


def test_ranks_are_children_of_the_supervisor_and_end_when_it_is_killed(tmp_path: Path) -> None:
    script = "echo $PPID > $2/$LOCAL_RANK; mv $2/$LOCAL_RANK $2/parent-$LOCAL_RANK; sleep 600"
    supervisor = Supervisor(tmp_path, script)
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"parent-{rank}")
    pids = find_ranks(supervisor.run_dir)
    supervisor.process.kill()
    supervisor.process.wait()
    for rank, pid in enumerate(pids):
        assert (supervisor.run_dir / f"parent-{rank}").read_text() == f"{supervisor.process.pid}\n"
        wait_until(functools.partial(has_ended, pid), f"rank {rank} to end")


def answers(supervisor: Supervisor) -> bool:
    try:
        return bool(supervisor.get("/healthz"))
    except OSError:
        return False


def has_a_pending_stop(pid: int) -> bool:
    """Whether a SIGTERM waits for that process to take it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) & 1 << (signal.SIGTERM - 1))


def test_a_hang_that_nobody_asks_about_ends_the_pod_by_itself(tmp_path: Path) -> None:
    script = 'sed -i s/Starting/Training/ "$2/progress.json"; sleep 600'
    limit = {Env.STALL_TIMEOUT_SECONDS: "1"}
    code, message = Supervisor(tmp_path, script, run=ONE_RANK, more=limit).end()
    assert (code, message.reason) == (75, "TrainerStalled")
    assert "stallTimeoutSeconds is 1" in message.message
    assert message.progress is not None


def test_it_says_where_its_processes_are(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "sleep 600")
    supervisor.wait_for(supervisor.run_dir / "ranks.json")
    assert json.loads(supervisor.get("/positions")) == {"attempt": 1, "nodeIndex": 0, "positions": []}
    supervisor.process.terminate()
    supervisor.end()
