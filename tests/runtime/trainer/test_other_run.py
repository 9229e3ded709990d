"""Finding the checkpoint of another run: nothing is changed where it is, and one that is damaged is not
used."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_api.v1alpha1.spec import ResumeFromSpec, ResumeLoad
from grpo_runtime.errors import CheckpointCorruptError, UserError
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.other_run import OtherCheckpoint, find_other_checkpoint
from grpo_runtime.trainer.checkpoint.store import CheckpointStore


def save(output: Path, *steps: int, attempt: int = 1) -> None:
    """Checkpoints of an attempt of the other run."""
    store = CheckpointStore(output / "checkpoints", job_uid="other", attempt=attempt, keep=9)
    store.begin_attempt()

    def write(folder: Path) -> Mapping[str, FileEntry]:
        (folder / "state.json").write_text(f"attempt {attempt}")
        return {}

    for step in steps:
        store.save(step, write)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The output of the other run, on the claim `runs`."""
    output = tmp_path / "volumes" / "claims" / "runs" / "first"
    save(output, 2, 4, 6)
    return output


def find(tmp_path: Path, source: str = "pvc://runs/first", **resume: Any) -> OtherCheckpoint:
    spec = ResumeFromSpec.from_object({"source": source, **resume})
    return find_other_checkpoint(spec, volumes_dir=tmp_path / "volumes", output_dir=tmp_path / "own")


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("place", "step"), [("", 6), ("/checkpoints", 6), ("/checkpoints/", 6), ("/checkpoints/step-000004", 4)]
)
def test_a_place_is_an_output_directory_its_checkpoints_or_one_of_them(
    tmp_path: Path, other: Path, place: str, step: int
) -> None:
    found = find(tmp_path, f"pvc://runs/first{place}")
    assert (found.folder, found.manifest.step) == (other / "checkpoints" / f"step-{step:06d}", step)
    assert found.load is ResumeLoad.CHECKPOINT


def test_a_file_url_names_a_directory_of_this_machine(tmp_path: Path, other: Path) -> None:
    spaced = tmp_path / "my runs"
    other.rename(spaced)
    assert find(tmp_path, f"file://{tmp_path}/my%20runs").manifest.step == 6


def test_a_copied_checkpoint_may_have_any_name(tmp_path: Path, other: Path) -> None:
    shutil.copytree(other / "checkpoints" / "step-000004", other.parent / "best")
    assert find(tmp_path, "pvc://runs/best").manifest.step == 4


def test_the_newest_is_that_of_the_highest_attempt(tmp_path: Path, other: Path) -> None:
    save(other, 5, attempt=2)  # attempt 1 was fenced off after its step 6
    assert (find(tmp_path).manifest.attempt, find(tmp_path).manifest.step) == (2, 5)


def test_a_step_may_be_named(tmp_path: Path, other: Path) -> None:
    assert find(tmp_path, step=2, load="Weights").folder.name == "step-000002"
    assert find(tmp_path, step=2, load="Weights").load is ResumeLoad.WEIGHTS


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, other: Path) -> None:
    with pytest.raises(
        UserError, match=r"no checkpoint of step 3, but step-000002, step-000004, step-000006"
    ):
        find(tmp_path, step=3)


@pytest.mark.parametrize("harm", ["changed", "missing", "no manifest", "broken manifest"])
def test_a_damaged_checkpoint_is_left_out_and_left_alone(tmp_path: Path, other: Path, harm: str) -> None:
    newest = other / "checkpoints" / "step-000006"
    if harm == "changed":
        (newest / "state.json").write_text("Attempt 1")
    elif harm == "missing":
        (newest / "state.json").unlink()
    elif harm == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text("{")
    before = state_of(other)
    assert find(tmp_path).manifest.step == 4
    assert state_of(other) == before
    shutil.rmtree(tmp_path / "own")
    with pytest.raises(CheckpointCorruptError, match=r"resumeFrom: no checkpoint .* is whole; .*step-000006"):
        find(tmp_path, step=6)


def test_with_none_that_is_whole_the_job_says_so(tmp_path: Path, other: Path) -> None:
    for folder in (other / "checkpoints").glob("step-*"):
        (folder / "state.json").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"state\.json is missing or differs"):
        find(tmp_path)


def test_a_place_without_checkpoints_is_refused_and_says_what_is_there(tmp_path: Path, other: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint at wrong on claim runs, which has first there"):
        find(tmp_path, "pvc://runs/wrong")


def test_a_path_that_leaves_its_claim_is_refused_behind_the_spec_too(tmp_path: Path, other: Path) -> None:
    outside = ResumeFromSpec.model_construct(source="pvc://runs/../other", job=None, load=None, step=None)
    with pytest.raises(UserError, match=r"resumeFrom\.source: .* leaves the volume runs"):
        find_other_checkpoint(outside, volumes_dir=tmp_path / "volumes", output_dir=tmp_path / "own")


def test_attempts_without_a_checkpoint_of_their_own_begin_with_the_same(tmp_path: Path, other: Path) -> None:
    assert find(tmp_path).manifest.step == 6
    save(other, 8)
    assert find(tmp_path).manifest.step == 6
    shutil.rmtree(other / "checkpoints" / "step-000006")
    with pytest.raises(UserError, match=r"no checkpoint of step 6, but .* bring back"):
        find(tmp_path)
