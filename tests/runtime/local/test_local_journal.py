"""The journal of a local run, which needs no claim."""

from pathlib import Path
from typing import Any

from local_command import job_object

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.local.workspace import Workspace


def begin(folder: Path, **spec: Any) -> RunConfig:
    workspace = Workspace(folder / "out")
    with workspace.held():
        return workspace.begin(parse_job(job_object(**spec)))


def test_a_local_run_keeps_a_journal_without_a_claim_unless_the_file_says_no(tmp_path: Path) -> None:
    assert begin(tmp_path / "a").keeps_journal
    assert not begin(tmp_path / "b", checkpoint={"journal": False}).keeps_journal
