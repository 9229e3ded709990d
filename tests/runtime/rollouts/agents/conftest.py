"""Lets the tests of this folder import its helpers and those of the gateway's tests."""

import os
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "gateway")]


@pytest.fixture
def calculator_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job's volumes with the ConfigMap of the calculator, whose commands run this Python."""
    example = Path(__file__).parents[4] / "examples" / "calculator"
    (tmp_path / "configmaps").mkdir()
    (tmp_path / "configmaps" / "calculator").symlink_to(example)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path
