"""docs/causes.md has exactly one row for every cause that a test provokes, and no other row."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_scenarios.causes import TRAINER_ONLY, WITH_ENGINE, WITHOUT_PROCESSES, Cause

REPOSITORY = Path(__file__).parents[2]
PROVOKED = {cause.slug: cause for cause in (*WITHOUT_PROCESSES, *TRAINER_ONLY, *WITH_ENGINE)}
_ROW = re.compile(r"^\| (?P<cells>.+) \|$")


@dataclass(frozen=True)
class Row:
    """A row of the table in docs/causes.md."""

    reason: str
    where: str
    sentence: str
    ends: str
    test: str


def rows() -> list[Row]:
    found = []
    for line in (REPOSITORY / "docs/causes.md").read_text().splitlines():
        match = _ROW.match(line)
        if not match or match["cells"].startswith(("cause |", "---")):
            continue
        _, reason, where, sentence, ends, _, test = match["cells"].split(" | ")
        found.append(Row(reason.strip("`"), where, sentence, ends, test.strip("`")))
    return found


ELSEWHERE = [row for row in rows() if "::" in row.test]


def test_every_cause_that_is_provoked_on_the_cluster_has_one_row():
    listed = [row.test for row in rows() if "::" not in row.test]
    assert sorted(listed) == sorted(PROVOKED)


@pytest.mark.parametrize("cause", PROVOKED.values(), ids=lambda cause: cause.slug)
def test_a_row_has_the_reason_the_condition_and_the_sentence_of_its_test(cause: Cause):
    (row,) = [row for row in rows() if row.test == cause.slug]
    assert row.reason == cause.reason
    assert f"`{cause.condition}`" in row.where
    assert (cause.condition_reason or cause.condition) in row.where
    assert (row.ends != "no") == cause.is_end
    assert [part for part in cause.says if part.replace("`", "") not in row.sentence.replace("`", "")] == []


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.test)
def test_a_row_that_is_not_tested_on_the_cluster_names_a_test_that_exists(row: Row):
    path, _, name = row.test.partition("::")
    functions = {
        node.name
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in functions
