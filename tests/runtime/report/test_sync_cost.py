"""What weight syncs cost, in metrics, in Prometheus and as a sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.report.metrics import sync_metrics
from grpo_runtime.report.metrics_file import MetricsFile, MetricsRecord
from grpo_runtime.report.phases import describe_syncs
from grpo_runtime.report.plot import plot_run
from grpo_runtime.report.prometheus import prometheus_text
from grpo_runtime.rollouts.interface import SyncReport

FLEET: dict[str, Any] = {
    "num_bytes": 3_000_000_000,
    "num_bytes_sent": 6_000_000_032,
    "phase_seconds": {"pause": 0.25, "transfer": 1.5},
    "paused_seconds": 2.5,
}


def report(**changes: Any) -> SyncReport:
    values: dict[str, Any] = {"synced": ("a", "b"), "failed": {}, **FLEET, **changes}
    return SyncReport(version=PolicyVersion(attempt=1, step=0), **values)


def test_the_rate_is_that_of_the_slowest_engine_however_much_was_sent() -> None:
    metrics = sync_metrics(report())
    assert metrics["sync/sent_bytes"] == 6_000_000_032
    assert metrics["sync/bytes_per_second"] == pytest.approx(2e9)
    assert metrics["sync/paused_seconds"] == 2.5


@pytest.mark.parametrize("changes", [{"num_bytes_sent": 0}, {"phase_seconds": {}}])
def test_there_is_no_rate_where_nothing_was_sent(changes: dict[str, Any]) -> None:
    assert "sync/bytes_per_second" not in sync_metrics(report(**changes))


def test_engines_that_are_not_paused_have_no_pause() -> None:
    assert "sync/paused_seconds" not in sync_metrics(report(paused_seconds=None))


def test_prometheus_has_every_phase_under_one_name_and_under_the_name_that_it_had() -> None:
    lines = prometheus_text(sync_metrics(report()), labels={"grpojob": "copy"}).splitlines()
    phases = [line for line in lines if line.startswith("grpo_weight_sync_phase_seconds{")]
    assert sorted(phases) == [
        'grpo_weight_sync_phase_seconds{grpojob="copy",phase="pause"} 0.25',
        'grpo_weight_sync_phase_seconds{grpojob="copy",phase="transfer"} 1.5',
    ]
    assert 'grpo_sync_pause_seconds{grpojob="copy"} 0.25' in lines
    assert 'grpo_sync_paused_seconds{grpojob="copy"} 2.5' in lines


def test_a_users_own_metric_with_the_name_of_the_phases_gives_way_to_them() -> None:
    values = {"weight_sync_phase_seconds": 9.0, "sync/pause_seconds": 0.25}
    text = prometheus_text(values, labels={"grpojob": "copy"})
    assert 'grpo_weight_sync_phase_seconds{grpojob="copy",phase="pause"} 0.25' in text
    assert "9.0" not in text


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([], ""),
        ([{"reward": 1.0}], ""),
        (
            [{"time/sync_seconds": 0.5, "step_time": 4.0}],
            "weight sync: 0.5 s of 4 s a step at the median",
        ),
        (
            [{"time/sync_seconds": 0.5, "step_time": 4.0, "sync/sent_bytes": 0.0}],
            "weight sync: 0.5 s of 4 s a step at the median",
        ),
        (
            [
                {**sync_metrics(report(paused_seconds=paused)), "time/sync_seconds": 3.0, "step_time": 12.0}
                for paused in (9.0, 2.5, 2.0)
            ],
            "weight sync: 3 s of 12 s a step at the median; engines paused for 2.5 s; 6 GB sent, "
            "2 GB/s to each engine",
        ),
    ],
)
def test_medians_as_a_sentence(steps: list[Mapping[str, float]], sentence: str) -> None:
    assert describe_syncs(steps) == sentence


def test_the_plot_of_a_run_says_what_its_syncs_cost(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    for step in (1, 2):
        values = {"reward": 0.5, "time/sync_seconds": 0.5, "step_time": 2.0}
        file.write(MetricsRecord(attempt=1, step=step, time=0.0, values=values))
    file.close()
    assert plot_run(tmp_path).splitlines()[-1] == "weight sync: 0.5 s of 2 s a step at the median"
