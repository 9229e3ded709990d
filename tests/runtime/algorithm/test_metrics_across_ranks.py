"""Metrics of a batch on two gloo ranks: both ranks report the metrics of the whole batch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "metrics_ranks.py"
LIMIT_SECONDS = 120.0


def test_every_rank_reports_the_metrics_of_the_whole_batch(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store")]
    # a session of its own, so that a rank that hangs is ended with the one that forked it
    ranks = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        outputs = ranks.communicate(timeout=LIMIT_SECONDS)[0].splitlines()
    finally:
        if ranks.poll() is None:
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
    assert (ranks.returncode, len(outputs)) == (0, 2)
    for output in outputs:
        # five tokens are under the masks; the mean of the ranks' means would be 3.625
        assert json.loads(output) == pytest.approx({"mean": 16.5 / 5, "least": 0.5, "greatest": 10.0})
