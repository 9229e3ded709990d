"""Which exits of ranks the supervisor has caused itself, and which are the cause of the pod's end."""

import functools
import json
import signal
import subprocess
import sys
from pathlib import Path

from polling import wait_until
from scripted_supervisor import LONG_WAIT_FOR_CAUSE, LONG_WAIT_FOR_PEERS, RANKS, Supervisor, has_ended
from started_processes import STARTED

from grpo_api.contract.reasons import Reason
from grpo_runtime.supervisor.fork_server import find_ranks
from grpo_runtime.supervisor.rank_processes import RankExit

SCRIPT = """
import json, os, signal, sys
from dataclasses import asdict
from pathlib import Path
from grpo_runtime.supervisor.rank_processes import RankProcesses, spawned, wait_for_signal

run_dir, num_before, ranks, script = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
start = spawned((sys.executable, "-c", ranks, script))
rendezvous = {"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2", "SUPERVISOR_PID": str(os.getpid())}
environment, exits = {**os.environ, **rendezvous}, []
processes = RankProcesses(environment, run_dir=run_dir, start_fork_server=start)

def collect(until):
    while not until():
        wait_for_signal({signal.SIGCHLD}, until=None)
        exits.extend(processes.collect_exits())

collect(lambda: (run_dir / "ranks.json").exists() and len(exits) == num_before)
(run_dir / "seen").touch()
signal.sigwait({signal.SIGUSR1})
processes.kill()
collect(lambda: not processes.is_alive)
print(json.dumps([asdict(rank) for rank in exits]))
"""
"""Collects exits until some ranks have ended, waits for SIGUSR1, kills the rest, and prints how all ended."""


class TwoRanks:
    """RankProcesses of two ranks that run a bash `script`, once the exits of `num_before` are collected."""

    def __init__(self, folder: Path, script: str, *, num_before: int = 0) -> None:
        arguments = [sys.executable, "-c", SCRIPT, str(folder), str(num_before), RANKS, script]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True)
        STARTED.append(self._process)
        wait_until((folder / "seen").exists, "the ranks to be adopted")

    def kill(self) -> dict[int, RankExit]:
        """Kill the ranks whose exits are not collected yet; returns how both ended."""
        self._process.send_signal(signal.SIGUSR1)
        printed = json.loads(self._process.communicate()[0])
        return {rank["local_rank"]: RankExit(**rank) for rank in printed}


def test_ranks_that_the_supervisor_kills_are_ours(tmp_path: Path) -> None:
    found = TwoRanks(tmp_path, "sleep 600").kill()
    assert found == {rank: RankExit(rank, 137, signal.SIGKILL, is_ours=True) for rank in (0, 1)}


def test_a_rank_that_was_killed_before_is_not_ours(tmp_path: Path) -> None:
    found = TwoRanks(tmp_path, "[ $LOCAL_RANK = 0 ] && kill -KILL $$; sleep 600", num_before=1).kill()
    assert found == {
        0: RankExit(0, 137, signal.SIGKILL, is_ours=False),
        1: RankExit(1, 137, signal.SIGKILL, is_ours=True),
    }


def test_a_rank_that_crashed_just_before_the_kill_is_not_ours(tmp_path: Path) -> None:
    crash = "ulimit -c 0; while [ ! -e $2/crash ]; do sleep 0.01; done; kill -SEGV $$"
    ranks = TwoRanks(tmp_path, f"[ $LOCAL_RANK = 1 ] && {{ {crash}; }}; sleep 600")
    (tmp_path / "crash").touch()
    wait_until(functools.partial(has_ended, find_ranks(tmp_path)[1]), "the rank to crash")
    assert ranks.kill() == {
        0: RankExit(0, 137, signal.SIGKILL, is_ours=True),
        1: RankExit(1, 139, signal.SIGSEGV, is_ours=False),
    }


PEER_LOST = json.dumps(
    {"reason": Reason.PEER_LOST, "message": "rank 1 is gone", "exitCode": 75, "isEffect": True}
)


def test_a_rank_that_was_killed_from_outside_is_the_cause_and_not_the_one_that_lost_it(
    tmp_path: Path,
) -> None:
    # the rank that lost a peer is seen to end before that peer
    script = f"""
        if [ $LOCAL_RANK = 0 ]; then
            echo $$ > "$2/pid.new"; mv "$2/pid.new" "$2/pid"
            echo '{PEER_LOST}' > "$2/error-0.json"; exit 75
        fi
        trap '' TERM
        while [ ! -e "$2/pid" ] || kill -0 $(cat "$2/pid"); do sleep 0.01; done
        kill -KILL $$
    """
    code, message = Supervisor(tmp_path, script, before=LONG_WAIT_FOR_CAUSE).end()
    assert (code, message.reason, message.rank) == (137, "Killed", 1)


def test_a_rank_that_is_killed_from_outside_while_it_stops_is_a_failure(tmp_path: Path) -> None:
    script = "trap 'kill -KILL $$' TERM; touch $2/up-$LOCAL_RANK; while true; do sleep 0.1; done"
    supervisor = Supervisor(tmp_path, script)
    for rank in (0, 1):
        supervisor.wait_for(supervisor.run_dir / f"up-{rank}")
    supervisor.process.send_signal(signal.SIGTERM)
    code, message = supervisor.end()
    assert (code, message.reason) == (137, "Killed")


def test_when_one_rank_fails_the_others_are_asked_to_end_and_not_killed(tmp_path: Path) -> None:
    script = """
        if [ $LOCAL_RANK = 1 ]; then while [ ! -e "$2/up" ]; do sleep 0.01; done; exit 1; fi
        trap 'touch "$2/was-asked"; exit 143' TERM
        touch "$2/up"; while true; do sleep 0.1; done
    """
    supervisor = Supervisor(tmp_path, script, before=LONG_WAIT_FOR_PEERS)
    code, message = supervisor.end()
    assert (code, message.reason, message.rank) == (1, "UnexpectedError", 1)
    assert (supervisor.run_dir / "was-asked").exists()
