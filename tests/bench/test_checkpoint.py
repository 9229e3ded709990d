"""The bench of a save that training waits for beside one that a thread writes."""

from pathlib import Path

import pytest

from grpo_checkpoint.cases import Case
from grpo_checkpoint.options import parse_options
from grpo_checkpoint.saves import synchronous_and_in_a_thread
from grpo_runtime.trainer.distributed import Ranks

TINY = Case(name="tiny", vocabulary=128, hidden=32, intermediate=64, num_layers=1, num_heads=2)


def test_both_ways_are_measured_and_leave_nothing(ranks: Ranks, tmp_path: Path) -> None:
    with synchronous_and_in_a_thread(TINY, folder=tmp_path, ranks=ranks) as (synchronous, threaded):
        first, second = synchronous.run(0), threaded.run(0)
    assert first["seconds that training waits"] == first["seconds to the commit"] > 0
    assert 0 < second["seconds that training waits"] < second["seconds to the commit"]
    assert not list(tmp_path.iterdir())


def test_the_options_name_cases_and_a_folder(tmp_path: Path) -> None:
    found = parse_options("", ["--pairs", "2", "--cases", "27M", "--folder", str(tmp_path)])
    assert (found.num_pairs, found.cases, found.folder) == (2, ("27M",), tmp_path)


@pytest.mark.parametrize("wrong", [["--pairs", "0"], ["--cases", "huge"], ["--folder", "/nowhere"]])
def test_a_wrong_option_is_reported_before_anything_is_measured(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options("", wrong)
