"""Functions in files of ConfigMaps, and the processes that they start."""

import sys
import textwrap
from pathlib import Path

import pytest

from grpo_runtime.process.user_code import FILE_MODULE, FILE_VARIABLE, FunctionFile, load_file

SCORES_IN_A_POOL = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from dataclasses import dataclass

    @dataclass
    class Score:
        value: float

    def score(completion):
        return Score(float(len(completion)))

    def reward(completions):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return list(pool.map(score, completions))
"""


@pytest.mark.parametrize("key", ["reward.py", "json.py", "code"])
def test_a_process_that_a_file_spawns_finds_its_functions_and_classes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    # both are changed by the call
    monkeypatch.setenv(FILE_VARIABLE, "")
    monkeypatch.setitem(sys.modules, FILE_MODULE, None)  # type: ignore[arg-type]
    path = tmp_path / key
    path.write_text(textwrap.dedent(SCORES_IN_A_POOL))
    function = load_file(
        FunctionFile(path=path, function="reward", place=f"key {key} of ConfigMap mine"), field="rewards"
    )
    scores = function(["a", "bb"])
    assert [score.value for score in scores] == [1.0, 2.0]
    assert {type(score) for score in scores} == {sys.modules[FILE_MODULE].Score}
