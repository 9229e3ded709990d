"""What all scripts do with their options and their two ways."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_bench.command_line import Options, run
from grpo_bench.errors import BenchError
from grpo_bench.pairs import Way


@contextmanager
def slow_and_fast() -> Iterator[tuple[Way, Way]]:
    yield Way("slow", lambda number: {"seconds": 3.0}), Way("fast", lambda number: {"seconds": 2.0})


def test_the_table_is_printed_and_a_line_is_added_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    for num_pairs in (1, 2):
        assert run("sleeping", slow_and_fast, options=Options(num_pairs=num_pairs, json=file)) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("sleeping: medians of 1 pairs")
    assert printed.out.splitlines()[-1].split() == ["seconds", "3", "2", "1.50", "1.50", "to", "1.50"]
    assert printed.err.splitlines()[-1] == "pair 2 of 2: seconds 3 : 2"
    assert [json.loads(line)["num_pairs"] for line in file.read_text().splitlines()] == [1, 2]


def test_ways_that_cannot_be_compared_end_the_script_with_a_sentence_and_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_ended = False

    @contextmanager
    def two_ways() -> Iterator[tuple[Way, Way]]:
        nonlocal is_ended

        def fail(number: int) -> dict[str, float]:
            raise BenchError("the two ways drew different tokens")

        try:
            yield Way("slow", lambda number: {"seconds": 3.0}), Way("wrong", fail)
        finally:
            is_ended = True

    assert run("sampling", two_ways, options=Options(num_pairs=2, json=tmp_path / "results.jsonl")) == 1
    printed = capsys.readouterr()
    assert printed.err == "error: the two ways drew different tokens\n"
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []
    assert is_ended
