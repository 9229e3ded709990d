"""A result as a table and as a line of JSON."""

import json

from grpo_bench.machine import Circumstances, circumstances
from grpo_bench.pairs import Comparison
from grpo_bench.report import Result, json_line, table

RESULT = Result(
    bench="bundles",
    first="a call for each sample",
    second="bundles",
    comparisons=[
        Comparison("seconds per step", first=0.57649, second=0.20551, ratios=[3.9213, 2.0338, 2.5]),
        Comparison("calls", first=1280.0, second=160.0, ratios=[8.0, 8.0, 8.0]),
    ],
    circumstances=Circumstances(
        date="2026-01-02",
        commit="abc1234",
        num_cores=2,
        cpu="A Processor",
        versions={"torch": "2", "vllm": "0"},
    ),
)


def test_the_table_has_a_row_for_each_quantity_and_says_where_it_was_measured() -> None:
    assert table(RESULT).splitlines() == [
        "bundles: medians of 3 pairs; the ratio is first : second",
        "2 cores of A Processor; torch 2, vllm 0; commit abc1234; 2026-01-02",
        "                   a call for each sample   bundles   ratio   lowest to highest",
        "seconds per step                    0.576     0.206    2.50        2.03 to 3.92",
        "calls                                1280       160    8.00        8.00 to 8.00",
    ]


def test_the_json_is_one_line_with_the_ratio_of_every_pair() -> None:
    line = json_line(RESULT)
    assert "\n" not in line
    assert json.loads(line) == {
        "bench": "bundles",
        "date": "2026-01-02",
        "commit": "abc1234",
        "num_cores": 2,
        "cpu": "A Processor",
        "versions": {"torch": "2", "vllm": "0"},
        "first": "a call for each sample",
        "second": "bundles",
        "num_pairs": 3,
        "quantities": {
            "seconds per step": {
                "first": 0.576,
                "second": 0.206,
                "ratio": 2.5,
                "ratios": [3.921, 2.034, 2.5],
            },
            "calls": {"first": 1280.0, "second": 160.0, "ratio": 8.0, "ratios": [8.0, 8.0, 8.0]},
        },
    }


def test_every_circumstance_of_this_machine_is_found() -> None:
    found = circumstances()
    assert found.num_cores >= 1
    assert found.cpu
    assert found.commit
    assert found.versions.keys() == {"torch", "vllm"}
