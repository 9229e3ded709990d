"""Ten minutes on a GPU: what a part that fails or takes too long does to the others, and the table. The whole
flow: e2e/nullgpu/test_gpu_day.py."""

import json
import sys
from pathlib import Path

import pytest

from grpo_gpu.day import GRACE_SECONDS, ROOT, WHOLE, Part, Report, parts_of_the_day, run_parts
from grpo_gpu.day_table import BEGIN, END, markdown, torch_of_the_image, with_table

BEFORE_AND_AFTER_SECONDS = 15
"""To install wheels, to ask the driver, and to write the report."""
POLL_SECONDS = 1
"""After which `outcome_of` looks at a part again."""


def part(name: str, script: str, folder: Path, *, budget_seconds: int = 60, suffix: str = "jsonl") -> Part:
    results = folder / f"{name}.{suffix}"
    return Part(name, (sys.executable, "-c", script, str(results)), budget_seconds, results, {})


def a_report() -> Report:
    return {
        "date": "2026-11-28",
        "commit": "abc1234",
        "device": "NVIDIA H200",
        "memory": "143771 MiB",
        "driver": "580.159.04",
        "cpu": "16 cores of a CPU",
        "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
        "torch_of_the_image": "2.13.0",
        "parts": [],
        "rows": [],
    }


STEP = {
    "bench": "gpu/learner",
    "size": "0.5B",
    "way": "DDP",
    "seconds": 1.482,
    "tokens_per_second": 33330.4,
    "share": 0.103,
    "peak_bytes": 12.3 * 2**30,
    "planned_bytes": 12.9 * 2**30,
}
RATES = {"bench": "gpu/sync", "num_bytes": 4e9, "gb_per_second": {"copy": 1487.2, "pack": 27.5}}
PAIRS = {
    "bench": "logprobs 27M on cuda",
    "first": "dense",
    "second": "chunked",
    "quantities": {"seconds": {"first": 0.02, "second": 0.01, "ratio": 2.0, "ratios": [1.9, 2.0, 2.25]}},
}
TESTS = """<testsuites><testsuite><testcase classname="tests.t" name="a"/>
<testcase classname="tests.t" name="b"><failure/><error/></testcase>
<testcase classname="tests.t" name="c"><skipped/></testcase></testsuite></testsuites>"""


def prints(text: str) -> str:
    return f"import sys; open(sys.argv[1], 'w').write({text!r})"


def test_all_parts_of_the_day_end_within_ten_minutes_whatever_they_take(tmp_path: Path) -> None:
    parts = parts_of_the_day(WHOLE, results=tmp_path)
    budgets = sum(part.budget_seconds + POLL_SECONDS + GRACE_SECONDS for part in parts)
    assert budgets + BEFORE_AND_AFTER_SECONDS <= 600


class LateOnceWritten:
    """A clock on which the part of these results is late when it has written them."""

    def __init__(self, results: Path, *, written: str) -> None:
        self._results, self._written = results, written

    def monotonic(self) -> float:
        is_written = self._results.exists() and self._results.read_text() == self._written
        return 1e6 if is_written else 0.0


def test_a_part_that_fails_or_takes_too_long_is_said_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateOnceWritten(tmp_path / "hangs.jsonl", written=json.dumps(RATES))
    monkeypatch.setattr("grpo_bench.bounded.time", clock)
    hangs = f"{prints(json.dumps(RATES))}; import signal; signal.pause()"
    report = a_report()
    parts = [
        part("tests", prints(TESTS), tmp_path, suffix="xml"),
        part("fails", "raise SystemExit(3)", tmp_path),
        part("hangs", hangs, tmp_path),
        part("half-written", prints(json.dumps(STEP)[:40]), tmp_path),
        part("half-tested", prints(TESTS[:40]), tmp_path, suffix="xml"),
        part("works", f"print('so far'); {prints(json.dumps(STEP))}", tmp_path),
    ]
    run_parts(parts, report=report, json_file=tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == report
    outcomes = {part["name"]: part["outcome"] for part in report["parts"]}
    assert outcomes == {
        "tests": "ok",
        "fails": "FAILED (3)",
        "hangs": "FAILED (over its budget of 60 s)",
        "half-written": "ok, results unreadable",
        "half-tested": "ok, results unreadable",
        "works": "ok",
    }
    said = capfd.readouterr().out
    assert "===== 3 of 6: hangs, up to 60 s" in said and "so far" in said
    (tests,) = report["parts"][0]["results"]
    assert (tests["num_passed"], tests["failed"], tests["skipped"]) == (1, ["tests.t::b"], ["tests.t::c"])
    # what was found before it was ended is there
    assert report["parts"][2]["results"] == [RATES]
    assert [row["what"] for row in report["rows"]] == [
        "tests that need a GPU",
        "fails",
        "copy, 4 GB",
        "pack, 4 GB",
        "hangs",
        "half-written",
        "half-tested",
        "a step of 0.5B, DDP",
    ]


def test_the_table_says_where_it_was_measured_and_which_versions_of_torch_each_row_holds_for(
    tmp_path: Path,
) -> None:
    report = a_report()
    parts = [part(str(n), prints(json.dumps(line)), tmp_path) for n, line in enumerate((STEP, RATES, PAIRS))]
    run_parts(parts, report=report, json_file=tmp_path / "report.json")
    head, _, _, _, *rows = markdown(report).splitlines()
    assert head == (
        "On 2026-11-28 at abc1234: one NVIDIA H200 (143771 MiB), driver 580.159.04, 16 cores of a CPU; "
        "torch 2.11.0, transformers 5.17.0. The image has torch 2.13.0."
    )
    assert rows == [
        "| a step of 0.5B, DDP | 1.48 s, 33,330 tokens/s, 10.3% of the peak; 12.3 GiB, planned 12.9 "
        "| torch 2.11.0 only |",
        "| copy, 4 GB | 1,487.2 GB/s | any torch |",
        "| pack, 4 GB | 27.5 GB/s | torch 2.11.0 only |",
        "| logprobs 27M on cuda, seconds: dense, chunked | 0.02, 0.01: ratio 2.00 (1.90 to 2.25) "
        "| torch 2.11.0 only |",
    ]


def test_a_table_takes_the_place_of_the_one_before_it() -> None:
    report = a_report()
    page = (ROOT / "docs/benchmarks.md").read_text()
    once = with_table(page, report)
    assert markdown(report) in once
    assert with_table(once, report) == once
    assert once.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert once.partition(END)[2] == page.partition(END)[2]
    with pytest.raises(ValueError, match="the page has no place for the table"):
        with_table("# Measured times", report)


def test_the_torch_of_the_image_is_the_one_that_its_requirements_pin() -> None:
    requirements = (ROOT / "runtime/requirements-cuda.txt").read_text()
    assert f"\ntorch=={torch_of_the_image(requirements)} " in requirements
