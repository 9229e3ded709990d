"""What the Makefile runs with the system's Python needs no package: a fresh clone has none yet."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("e2e/cluster/cli.py", "e2e/demo/cli.py", "e2e/images/cli.py")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_makefile_starts_without_a_single_package(program: str) -> None:
    # -S leaves out the installed packages, -E the variables that could bring others
    command = [sys.executable, "-E", "-S", str(ROOT / program), "--help"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout


def test_these_are_all_programs_that_the_makefile_runs_so() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\$\(PYTHON\) (\S+/cli\.py)", makefile))
    assert named == set(PROGRAMS)
