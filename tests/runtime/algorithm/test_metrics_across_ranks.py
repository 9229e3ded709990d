"""Metrics of a batch on two gloo ranks: both ranks report the metrics of the whole batch."""

import json
from pathlib import Path

import pytest
from forks import run_ranks

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parent / "metrics_ranks.py"


def test_every_rank_reports_the_metrics_of_the_whole_batch(tmp_path: Path) -> None:
    outputs = run_ranks(SCRIPT, str(tmp_path / "store")).splitlines()
    assert len(outputs) == 2
    for output in outputs:
        # five tokens are under the masks; the mean of the ranks' means would be 3.625
        # whatever the order in which a rank has them
        expected = {"mean": 16.5 / 5, "mean_of_squares": 114.25 / 5, "least": 0.5, "greatest": 10.0}
        assert json.loads(output) == pytest.approx(expected)
