"""A job with real engines whose weights go through a bucket."""

from pathlib import Path

import pytest
from local_command import LocalCommand
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, served_bucket
from test_local_run_on_engines import REAL_RUN, START_SECONDS, shortened

from grpo_runtime.report.metrics_file import read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.matrix]


def test_a_job_trains_with_engines_that_read_weights_from_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with served_bucket(tmp_path / "s3") as s3:
        job = shortened()
        disk = {"to": f"s3://{BUCKET}/copy", "endpoint": s3.endpoint, "keep": 2}
        job["spec"] |= {"rollout": {"replicas": 1}, "weightSync": {"disk": disk}}
        job["spec"]["algorithm"] |= {"promptsPerStep": 4, "groupSize": 4}
        run = LocalCommand(tmp_path, job, command=REAL_RUN)
        assert run.end(seconds=START_SECONDS) == 0, run.screen()
    records = read_metrics(tmp_path / "out/metrics.jsonl")
    assert [record.step for record in records] == [1, 2, 3]
    assert all(0 <= record.values["sync/max_probe_error"] < 1e-4 for record in records)
    versions = sorted(path.name for path in (s3.folder / "buckets" / BUCKET / "copy").glob("version-*"))
    assert versions == ["version-000001-000001", "version-000001-000002"]
    assert SECRET_KEY not in run.screen()
