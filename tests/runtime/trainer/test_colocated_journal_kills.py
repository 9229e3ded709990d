"""kill -9 at every point of a step, over a scripted engine in each rank; see test_journal_kills.py."""

from pathlib import Path
from typing import Any

import pytest
from kill_cells import cells, kill_and_go_on

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("way", "cell"), cells(is_colocated=True))
def test_a_killed_run_ends_as_the_undisturbed_one(
    undisturbed: dict[str, Path], tmp_path: Path, way: str, cell: Any
) -> None:
    kill_and_go_on(undisturbed, tmp_path, way=way, cell=cell)
