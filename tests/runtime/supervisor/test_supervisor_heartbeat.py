"""The supervisor's heartbeat file: what the liveness probe of a trainer pod looks at."""

import signal
from pathlib import Path

from polling import wait_until
from scripted_supervisor import ONE_RANK, Supervisor

from grpo_api.contract.endpoints import HEARTBEAT_SECONDS
from grpo_runtime.supervisor.supervisor import Heartbeat

FILE = "heartbeat-1-0"


def test_the_file_is_touched_while_a_rank_cannot_do_anything(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "touch $2/up; kill -STOP $$", run=ONE_RANK, grace_seconds=1.0)
    supervisor.wait_for(supervisor.run_dir / "up")
    file = tmp_path / FILE
    supervisor.wait_for(file)
    first = file.stat().st_mtime
    wait_until(lambda: file.stat().st_mtime > first, "another beat", seconds=6 * HEARTBEAT_SECONDS)
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.end()[0] == 143


def test_a_beat_makes_the_file_and_the_next_one_is_due_later(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "file")
    due = heartbeat.beat()
    assert (tmp_path / "file").exists()
    (tmp_path / "file").unlink()
    assert heartbeat.beat() == due
    assert not (tmp_path / "file").exists()
