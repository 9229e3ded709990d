"""`make gpu-day` with small sizes on a null GPU: its whole flow. Its numbers mean nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from grpo_nullgpu.machine import NullMachine

from grpo_gpu.day_table import BEGIN, END

ROOT = Path(__file__).parents[2]
SECONDS = 1200.0
NUM_TESTS = 7


@pytest.mark.matrix
def test_ten_minutes_on_a_gpu_find_all_that_they_look_for(tmp_path: Path) -> None:
    machine = NullMachine(tmp_path, num_gpus=1, has_numbers=True)
    report_file, page = tmp_path / "day.json", tmp_path / "page.md"
    given = (f"PYTHON={sys.executable}", f"JSON={report_file}", "SMALL=1", "COMMIT=abc1234")
    # wheels in the checkout are for another Python
    no_wheels = tmp_path / "no-wheels"
    no_wheels.mkdir()
    day = subprocess.run(
        ["make", "gpu-day", *given, f"GPU_FOLDER={no_wheels}"],
        cwd=ROOT,
        env=machine.environment(NULL_GPU_GIB="80"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert day.returncode == 0, day.stdout + day.stderr
    report = json.loads(report_file.read_text())
    assert (report["device"], report["commit"]) == ("null GPU", "abc1234")
    assert [part["outcome"] for part in report["parts"]] == ["ok"] * 6
    tests, *measured = (part["results"] for part in report["parts"])
    assert (tests[0]["num_passed"], tests[0]["failed"], tests[0]["skipped"]) == (NUM_TESTS, [], [])
    assert [[line["bench"] for line in lines] for lines in measured] == [
        ["gpu/learner"] * 3,
        ["logprobs tiny on cuda"],
        ["gpu/sync"],
        ["gpu/learner"] * 2,
        ["checkpoint tiny on cuda"],
    ]
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    into = ("bench/gpu/day.py", "--json", str(report_file), "--into", str(page))
    subprocess.run([sys.executable, *into], cwd=ROOT, check=True, timeout=60)
    assert all(f"| {row['what']} | {row['result']} |" in page.read_text() for row in report["rows"])
