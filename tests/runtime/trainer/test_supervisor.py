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

SUPERVISE = """
import os, sys
from pathlib import Path
from grpo_runtime.trainer.supervisor import SupervisorOptions, supervise
port, log, script = sys.argv[1:]
options = SupervisorOptions(
    port=int(port), grace_seconds=1.0, termination_log=Path(log),
    rank_command=("/bin/bash", "-c", script, "rank"),
)
code = supervise(os.environ, options=options)
assert "torch" not in sys.modules, "the supervisor loaded torch"
sys.exit(code)
"""

# what a rank that did its work would have written; $2 is the run directory
DONE = 'sed -i s/Starting/Done/ "$2/progress.json"; exit 0'


class Supervisor:
    """A real supervisor process over ranks that run a bash `script`."""

    def __init__(self, folder: Path, script: str, *, num_ranks: int = 2) -> None:
        run = run_config(trainer={"processesPerNode": num_ranks})
        self.log = folder / "termination-log"
        self.port = free_port()
        self.run_dir = folder / "cache-1-0" / "run"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(self.port), str(self.log), script],
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
