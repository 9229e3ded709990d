from pathlib import Path

import pytest

from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsFile, MetricsRecord, read_metrics


def write(folder: Path, attempt: int, rewards: dict[int, float]) -> None:
    writer = MetricsFile(folder)
    for step, reward in rewards.items():
        writer.write(MetricsRecord(attempt=attempt, step=step, time=0.0, values={"reward": reward}))
    writer.close()


def rewards(folder: Path) -> dict[int, float]:
    return {record.step: record.values["reward"] for record in read_metrics(folder / METRICS_FILE)}


def test_the_later_attempt_wins(tmp_path: Path) -> None:
    write(tmp_path, 1, {1: 0.1, 2: 0.2, 3: 0.3})
    write(tmp_path, 2, {3: 0.33, 4: 0.44})
    assert rewards(tmp_path) == {1: 0.1, 2: 0.2, 3: 0.33, 4: 0.44}


def test_steps_that_a_resume_undid_do_not_count_before_they_are_done_again(tmp_path: Path) -> None:
    write(tmp_path, 1, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
    write(tmp_path, 2, {3: 0.33})
    assert rewards(tmp_path) == {1: 0.1, 2: 0.2, 3: 0.33}


def test_a_line_cut_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path, 1, {1: 0.1})
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"attempt": 1, "step": 2, "ti')
    write(tmp_path, 2, {2: 0.2})
    assert rewards(tmp_path) == {1: 0.1, 2: 0.2}


def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, 1, {1: float("nan")})


def test_a_users_own_metric_cannot_move_a_record_to_another_step(tmp_path: Path) -> None:
    writer = MetricsFile(tmp_path)
    own = {"reward": 0.5, "step": 900.0, "attempt": 7.0, "time": -1.0}
    writer.write(MetricsRecord(attempt=1, step=2, time=3.0, values=own))
    writer.close()
    assert read_metrics(tmp_path / METRICS_FILE) == [MetricsRecord(1, 2, 3.0, {"reward": 0.5})]
