"""The supervisor with ranks that are shell scripts: fast, and no torch anywhere."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from pod_builder import free_port, run_config, trainer_environment

from grpo_api.contract.progress import Progress, TerminationMessage
from grpo_runtime.trainer.nursery import find_ranks

SUPERVISE = """
import os, sys
from pathlib import Path
from grpo_runtime.trainer.supervisor import SupervisorOptions, supervise
port, log, ranks, script = sys.argv[1:]
options = SupervisorOptions(
    port=int(port), grace_seconds=1.0, termination_log=Path(log),
    ranks_command=(sys.executable, "-c", ranks, script),
)
code = supervise(os.environ, options=options)
assert "torch" not in sys.modules, "the supervisor loaded torch"
sys.exit(code)
"""

RANKS = """
import os, sys
from pathlib import Path
from grpo_runtime.trainer.nursery import raise_ranks
script, _, run_dir = sys.argv[1:]
command = ("/bin/bash", "-c", script, "rank", "--run-dir", run_dir)
become = lambda environment: os.execve(command[0], command, environment)
raise_ranks(os.environ, run_dir=Path(run_dir), learn=lambda: become)
"""

# what a rank that did its work would have written; $2 is the run directory
DONE = 'sed -i s/Starting/Done/ "$2/progress.json"; exit 0'


class Supervisor:
    """A real supervisor process over ranks that run a bash `script`, raised by Python code, `ranks`."""

    def __init__(self, folder: Path, script: str, *, num_ranks: int = 2, ranks: str = RANKS) -> None:
        run = run_config(trainer={"processesPerNode": num_ranks})
        self.log = folder / "termination-log"
        self.port = free_port()
        self.run_dir = folder / "cache-1-0" / "run"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(self.port), str(self.log), ranks, script],
            env={**os.environ, **trainer_environment(folder, run)},
        )

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.read()

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} did not appear"
            assert self.process.poll() is None, "the supervisor ended early"
            time.sleep(0.02)

    def nursery(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def end(self) -> tuple[int, TerminationMessage]:
        code = self.process.wait(timeout=30)
        return code, TerminationMessage.model_validate_json(self.log.read_text())


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


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    script = "trap '' TERM; touch $2/up-$LOCAL_RANK; while true; do sleep 0.1; done"
    supervisor = Supervisor(tmp_path, script, num_ranks=1)
    supervisor.wait_for(supervisor.run_dir / "up-0")
    supervisor.process.send_signal(signal.SIGTERM)
    code, message = supervisor.end()
    assert (code, message.reason) == (143, "Terminated")


def test_sigterm_reaches_every_rank(tmp_path: Path) -> None:
    script = "trap 'touch $2/told-$LOCAL_RANK; exit 143' TERM; touch $2/up-$LOCAL_RANK; sleep 600 & wait"
    supervisor = Supervisor(tmp_path, script)
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"up-{rank}")
    supervisor.process.send_signal(signal.SIGTERM)
    code, _ = supervisor.end()
    assert code == 143
    assert all((supervisor.run_dir / f"told-{rank}").exists() for rank in (0, 1))


def test_the_endpoint_answers_whatever_the_ranks_do(tmp_path: Path) -> None:
    script = "kill -STOP $$"  # as blocked as a process can be
    supervisor = Supervisor(tmp_path, script, num_ranks=1)
    supervisor.wait_for(supervisor.run_dir / "progress.json")
    deadline = time.monotonic() + 20
    while True:
        try:
            assert supervisor.get("/healthz") == b"ok\n"
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    progress = Progress.model_validate_json(supervisor.get("/progress"))
    assert (progress.state, progress.step, progress.attempt) == ("Starting", 0, 1)
    with pytest.raises(urllib.error.HTTPError):
        supervisor.get("/run.json")
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.end()[0] == 143


def test_a_nursery_that_fails_is_the_pods_failure(tmp_path: Path) -> None:
    code, message = Supervisor(tmp_path, "", ranks="raise SystemExit(7)").end()
    assert (code, message.rank) == (7, 0)
    code, message = Supervisor(tmp_path, "", ranks="import os; os.kill(os.getpid(), 9)").end()
    assert (code, message.reason) == (137, "Killed")


def test_a_stop_ends_a_nursery_that_still_imports(tmp_path: Path) -> None:
    ranks = """
import sys, threading
from pathlib import Path
(Path(sys.argv[-1]) / "importing").touch()
threading.Event().wait()
"""
    supervisor = Supervisor(tmp_path, "", ranks=ranks)
    supervisor.wait_for(supervisor.run_dir / "importing")
    supervisor.process.send_signal(signal.SIGTERM)
    code, message = supervisor.end()
    assert (code, message.reason) == (143, "Terminated")


def test_a_stop_that_comes_while_ranks_are_raised_reaches_them(tmp_path: Path) -> None:
    # the nursery ends only when told, with its ranks already forked and SIGTERM blocked
    ranks = f"""
import time
from grpo_runtime.trainer import nursery
leave_ids = nursery.write_atomically
def leave_ids_late(path, text):
    path.with_name("forked").touch()
    while not path.with_name("told").exists():
        time.sleep(0.01)
    leave_ids(path, text)
nursery.write_atomically = leave_ids_late
{RANKS}
"""
    supervisor = Supervisor(tmp_path, "touch $2/$LOCAL_RANK-began; sleep 600 & wait", ranks=ranks)
    supervisor.wait_for(supervisor.run_dir / "forked")
    supervisor.process.send_signal(signal.SIGTERM)
    wait_for_a_pending_stop(supervisor.nursery())
    (supervisor.run_dir / "told").touch()
    code, message = supervisor.end()
    assert (code, message.reason) == (143, "Terminated")


def test_ranks_whose_nursery_was_killed_do_not_begin(tmp_path: Path) -> None:
    ranks = f"""
import os, signal
from grpo_runtime.trainer import nursery
def die(path, text):
    path.with_name("pids").write_text(text)
    os.kill(os.getpid(), signal.SIGKILL)
nursery.write_atomically = die
{RANKS}
"""
    supervisor = Supervisor(tmp_path, "touch $2/$LOCAL_RANK-began; sleep 600 & wait", ranks=ranks)
    code, message = supervisor.end()
    assert (code, message.reason) == (137, "Killed")
    for pid in json.loads((supervisor.run_dir / "pids").read_text()):
        wait_for_the_end_of(pid)
    assert not list(supervisor.run_dir.glob("*-began"))


def test_ranks_are_children_of_the_supervisor_and_end_when_it_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "echo $PPID > $2/parent-$LOCAL_RANK; sleep 600")
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"parent-{rank}")
    pids = find_ranks(supervisor.run_dir)
    supervisor.process.kill()
    supervisor.process.wait()
    for rank, pid in enumerate(pids):
        assert (supervisor.run_dir / f"parent-{rank}").read_text() == f"{supervisor.process.pid}\n"
        wait_for_the_end_of(pid)


def wait_for_the_end_of(pid: int) -> None:
    """Return when there is no such process, or nobody has collected it yet."""
    deadline = time.monotonic() + 20
    while (stat := Path(f"/proc/{pid}/stat")).exists():
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        assert time.monotonic() < deadline, f"process {pid} runs on"
        time.sleep(0.02)


def wait_for_a_pending_stop(pid: int) -> None:
    """Return when a SIGTERM waits for that process to take it."""
    deadline = time.monotonic() + 20
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
        if pending & 1 << (signal.SIGTERM - 1):
            return
        assert time.monotonic() < deadline, "no SIGTERM arrived"
        time.sleep(0.02)
