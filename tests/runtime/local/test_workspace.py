"""What a local run is, once and for all: its weight-sync backend and its journal are those of one machine."""

from pathlib import Path
from typing import Any

import pytest
from local_command import job_object

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.errors import UserError
from grpo_runtime.local.workspace import Workspace


def begin(folder: Path, **spec: Any) -> RunConfig:
    workspace = Workspace(folder)
    with workspace.held():
        return workspace.begin(parse_job(job_object(**spec)))


def backend(folder: Path, **spec: Any) -> str:
    return begin(folder, **spec).weight_sync_backend


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "shared_memory"),
        ({"weightSync": {"backend": "Auto"}}, "shared_memory"),
        ({"weightSync": {"backend": "Gloo"}}, "gloo"),
        ({"rollout": None}, "in_process"),
    ],
)
def test_engines_beside_the_trainer_read_its_memory_unless_another_way_is_asked_for(
    tmp_path: Path, spec: dict[str, Any], expected: str
) -> None:
    assert backend(tmp_path, **spec) == expected
    assert backend(tmp_path, **spec) == expected  # also when it continues


def test_a_run_that_goes_on_is_not_given_another_backend(tmp_path: Path) -> None:
    assert backend(tmp_path, weightSync={"backend": "Gloo"}) == "gloo"
    assert backend(tmp_path) == "gloo"
    with pytest.raises(UserError, match=r"weightSync\.timeoutSeconds was 300 and is now 60"):
        backend(tmp_path, weightSync={"timeoutSeconds": 60})


def test_a_run_that_began_with_shared_memory_refuses_another_backend(tmp_path: Path) -> None:
    backend(tmp_path)
    with pytest.raises(UserError, match=r"weightSync\.backend was 'SharedMemory' and is now 'Gloo'"):
        backend(tmp_path, weightSync={"backend": "Gloo"})


def test_a_local_run_keeps_a_journal_without_a_claim_unless_the_file_says_no(tmp_path: Path) -> None:
    assert begin(tmp_path / "a").keeps_journal
    assert not begin(tmp_path / "b", checkpoint={"journal": False}).keeps_journal
