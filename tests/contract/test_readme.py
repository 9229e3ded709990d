"""The README is true: tests run its commands, its job is the example, and the files it links to exist."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from grpo_scenarios.readme import (
    GUIDE,
    NOT_RUN,
    README,
    RUN_ELSEWHERE,
    commands,
    is_run_in_scenario,
    reason_not_to_run,
)

ROOT = README.parent
TEXT = README.read_text()
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_every_command_is_run_by_a_test_or_has_a_reason_why_not() -> None:
    found = commands(TEXT)
    assert len(found) > 15
    for command in found:
        where = reason_not_to_run(command) or RUN_ELSEWHERE.get(command, "run in the scenario")
        print(f"{command}\n    {where}")
        is_make = command.startswith("make")
        assert not is_make or reason_not_to_run(command) or command in RUN_ELSEWHERE, (
            f"nothing runs `{command}`"
        )
    assert sum(is_run_in_scenario(command) for command in found) >= 12


def test_every_exemption_is_still_needed() -> None:
    found = commands(TEXT) + commands(GUIDE.read_text())
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in found)] == []
    assert RUN_ELSEWHERE.keys() <= set(found)


def test_a_command_in_a_sentence_is_also_in_a_block() -> None:
    prose = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`((?:make|kubectl|helm|docker|python3?|git) [^`]+)`", prose)
    assert [name for name in named if not any(command.startswith(name) for command in commands(TEXT))] == []


def test_make_help_lists_every_target_of_the_readme() -> None:
    listed = make("help")
    targets = {command.split()[1] for command in commands(TEXT) if command.startswith("make ")}
    assert [target for target in targets if f"make {target} " not in listed] == []


def test_make_test_runs_what_the_readme_says_it_runs() -> None:
    parts = (ROOT / "tests" / "run_all.py").read_text()
    assert '("make", "setup")' in parts and '("make", "check")' in parts
    for target, option in (("test", ""), ("test-fast", " --fast"), ("test-matrix", " --matrix")):
        assert make("--dry-run", target).rstrip().endswith(f"tests/run_all.py{option}")
    assert "e2e/cluster/cli.py down" in make("--dry-run", "cluster-down")


def test_the_first_job_is_the_example() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert yaml.safe_load(block) == yaml.safe_load((ROOT / "examples/copy-disaggregated.yaml").read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_local_link_is_to_a_file_that_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_section_is_to_one_that_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*\.md)?#([^)]+)\)", page.read_text())
    assert [
        f"{file}#{section}"
        for file, section in links
        if section not in sections(page.parent / file if file else page)
    ] == []


def sections(page: Path) -> set[str]:
    """What GitHub calls the sections of a page in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
