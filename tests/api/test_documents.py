"""Every GRPOJob that a person may copy out of this repository is valid."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_api.problems import problems

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def jobs_in(text: str) -> Iterator[Any]:
    for found in yaml.safe_load_all(text):
        if isinstance(found, dict) and found.get("kind") == "GRPOJob":
            yield found


def jobs_to_copy() -> Iterator[Any]:
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        yield from (pytest.param(job, id=path.name) for job in jobs_in(path.read_text()))
    for path in PAGES:
        blocks = re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
        for number, block in enumerate(blocks):
            yield from (pytest.param(job, id=f"{path.name}-{number}") for job in jobs_in(block))


@pytest.mark.parametrize("job", list(jobs_to_copy()))
def test_a_job_to_copy_is_valid(job: Any):
    assert problems(job) == []
