import errno
import hashlib
import shutil
from pathlib import Path

import pytest

from grpo_runtime.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    SupersededError,
    UserError,
)
from grpo_runtime.trainer.checkpoint.manifest import FileEntry, read_manifest
from grpo_runtime.trainer.checkpoint.reading import ReadProgress
from grpo_runtime.trainer.checkpoint.store import CheckpointStore


def store(folder: Path, *, attempt: int = 1, keep: int = 2, job_uid: str = "uid") -> CheckpointStore:
    return CheckpointStore(folder, job_uid=job_uid, attempt=attempt, keep=keep)


def save(target: CheckpointStore, step: int, text: str = "weights") -> Path:
    def write(folder: Path) -> dict[str, FileEntry]:
        (folder / "model").mkdir()
        (folder / "model" / "data").write_text(f"{text} {step}")
        (folder / "model" / "config.json").write_text("{}")
        (folder / "state.json").write_text("state")
        return {}

    return target.save(step, write)


def claimed(folder: Path, **options: int) -> CheckpointStore:
    found = store(folder, **options)
    found.begin_attempt()
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names in paths of folders that cannot be removed, as on NFS while somebody reads a file of one."""
    found: set[str] = set()
    remove = shutil.rmtree

    def rmtree(path: Path, ignore_errors: bool = False) -> None:
        if Path(path).exists() and any(name in str(path) for name in found):
            if ignore_errors:
                return
            raise OSError(errno.EBUSY, "Device or resource busy", f"{path}/.nfs01")
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr("grpo_runtime.trainer.checkpoint.store.shutil.rmtree", rmtree)
    return found


def test_what_cannot_be_removed_ends_no_attempt_and_goes_when_it_can(tmp_path: Path, busy: set[str]) -> None:
    busy.add("step-000001")
    for attempt in (1, 2, 3):
        found = claimed(tmp_path, attempt=attempt)
        for step in (1, 2, 3):
            save(found, step)
        # a step again, of the same attempt: the one before cannot be removed either
        save(found, 1)
        assert (tmp_path / "LATEST").read_text() == "step-000001\n"
        assert found.newest() is not None
    assert list(tmp_path.glob(".tmp-step-000001*"))
    busy.clear()
    claimed(tmp_path, attempt=4)
    assert list(tmp_path.glob(".tmp-*")) == []


def test_a_damaged_one_that_was_put_aside_and_cannot_be_removed_is_in_nobodys_way(
    tmp_path: Path, busy: set[str]
) -> None:
    busy.add("damaged")
    found = claimed(tmp_path)
    for _ in range(2):
        save(found, 2)
        (save(found, 4) / "state.json").write_text("other")
        newest = found.newest()
        assert newest is not None and newest[1].step == 2
    assert names(tmp_path) == ["step-000002", "step-000004.damaged-1", "step-000004.damaged-1-2"]


def test_an_older_manifest_that_cannot_be_read_keeps_no_save_from_its_end(tmp_path: Path) -> None:
    found = claimed(tmp_path)
    (save(found, 1) / "manifest.json").write_text("")
    for step in (2, 3, 4):
        save(found, step)
    assert names(tmp_path) == ["step-000001", "step-000003", "step-000004"]


def test_a_committed_checkpoint_without_room_for_latest_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from grpo_runtime.trainer.checkpoint import store as module

    write = module.write_atomically

    def without_room(path: Path, content: str | bytes, *, durable: bool = False) -> None:
        if path.name == "LATEST":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content, durable=durable)

    monkeypatch.setattr(module, "write_atomically", without_room)
    found = claimed(tmp_path)
    save(found, 2)
    newest = found.newest()
    assert newest is not None and newest[1].step == 2
    assert "step-000002 is saved, but what follows a save failed" in caplog.text


def test_a_new_job_has_no_checkpoint(tmp_path: Path) -> None:
    assert claimed(tmp_path / "checkpoints").newest() is None


def test_the_newest_checkpoint_is_found_and_older_ones_go(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    for step in (2, 4, 6):
        save(first, step)
    found = claimed(tmp_path, attempt=2).newest()
    assert found is not None
    path, manifest = found
    assert (path.name, manifest.step, manifest.attempt) == ("step-000006", 6, 1)
    assert set(manifest.files) == {"model/config.json", "model/data", "state.json"}
    assert names(tmp_path) == ["step-000004", "step-000006"]
    assert (tmp_path / "LATEST").read_text() == "step-000006\n"


@pytest.mark.parametrize("harm", ["changed", "cut", "missing", "no manifest", "broken manifest"])
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_is_used(tmp_path: Path, harm: str) -> None:
    first = claimed(tmp_path)
    save(first, 2)
    newest = save(first, 4)
    if harm == "changed":
        (newest / "model" / "data").write_text("Weights 4")
    elif harm == "cut":
        (newest / "model" / "data").write_text("wei")
    elif harm == "missing":
        (newest / "state.json").unlink()
    elif harm == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text("{")
    found = claimed(tmp_path, attempt=2).newest()
    assert found is not None
    assert found[1].step == 2
    assert names(tmp_path) == ["step-000002", "step-000004.damaged-2"]


def test_of_several_checkpoints_only_the_newest_is_read(tmp_path: Path) -> None:
    first = claimed(tmp_path, keep=3)
    for step in (2, 4, 6):
        newest = save(first, step)
    reading = ReadProgress()
    assert claimed(tmp_path, attempt=2, keep=3).newest(reading=reading) is not None
    sizes = [path.stat().st_size for path in newest.rglob("*") if path.is_file()]
    assert reading.num_bytes == sum(sizes) - (newest / "manifest.json").stat().st_size
    assert reading.message == "checking the checkpoint of step 6: 100% of 0.0 GB"


def test_an_older_checkpoint_that_is_damaged_is_found_when_it_is_needed(tmp_path: Path) -> None:
    first = claimed(tmp_path, keep=3)
    paths = {step: save(first, step) for step in (2, 4, 6)}
    (paths[4] / "state.json").write_text("ruins")
    second = claimed(tmp_path, attempt=2, keep=3)
    found = second.newest()
    assert found is not None and found[1].step == 6
    assert names(tmp_path) == ["step-000002", "step-000004", "step-000006"]
    (paths[6] / "state.json").write_text("ruins")
    found = second.newest()
    assert found is not None and found[1].step == 2
    assert names(tmp_path) == ["step-000002", "step-000004.damaged-2", "step-000006.damaged-2"]


def test_a_volume_that_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(claimed(tmp_path), 2)
    later = claimed(tmp_path, attempt=2)

    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(OSError, match="Input/output error"):
        later.newest()
    monkeypatch.undo()
    assert names(tmp_path) == ["step-000002"]
    assert later.newest() is not None


def test_a_folder_without_what_the_job_has_saved_is_not_begun_with(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match=r"of step 6, and .* has none"):
        claimed(tmp_path).newest(saved_step=6)
    first = claimed(tmp_path)
    save(first, 4)
    with pytest.raises(CheckpointMissingError, match="has that of step 4 as the newest"):
        first.newest(saved_step=6)
    save(first, 6)
    for known in (None, 4, 6):
        found = first.newest(saved_step=known)
        assert found is not None and found[1].step == 6
    assert first.set_aside == []


def test_a_newest_checkpoint_that_is_damaged_is_no_missing_one_in_this_attempt_nor_the_next(
    tmp_path: Path,
) -> None:
    first = claimed(tmp_path)
    save(first, 4)
    (save(first, 6) / "model" / "data").write_text("cut")
    second = claimed(tmp_path, attempt=2)
    for target, told in ((second, 1), (claimed(tmp_path, attempt=3), 0)):
        found = target.newest(saved_step=6)
        assert found is not None and found[1].step == 4
        assert len(target.set_aside) == told
    assert "step-000006 (" in second.set_aside[0]


def test_when_all_that_was_committed_is_damaged_the_job_says_so_each_time(tmp_path: Path) -> None:
    (save(claimed(tmp_path), 2) / "state.json").unlink()
    for attempt in (2, 3):
        with pytest.raises(CheckpointCorruptError, match="none is whole"):
            claimed(tmp_path, attempt=attempt).newest()


def test_a_write_that_was_cut_short_was_never_committed(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    save(first, 2)

    def die(folder: Path) -> dict[str, FileEntry]:
        (folder / "half").write_text("half")
        raise ConnectionError("the claim went away")

    with pytest.raises(ConnectionError):
        first.save(4, die)
    found = claimed(tmp_path, attempt=2).newest()
    assert found is not None
    assert found[1].step == 2
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_attempt_that_is_over_can_neither_start_nor_commit(tmp_path: Path) -> None:
    old = claimed(tmp_path)
    save(old, 2)
    new = claimed(tmp_path, attempt=2)
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        save(old, 4)
    with pytest.raises(SupersededError):
        old.begin_attempt()
    save(new, 4)
    assert names(tmp_path) == ["step-000002", "step-000004"]


def test_an_attempt_that_is_fenced_off_while_it_writes_commits_nothing(tmp_path: Path) -> None:
    old = claimed(tmp_path)

    def write(folder: Path) -> dict[str, FileEntry]:
        (folder / "state").write_text("state")
        (tmp_path / "attempt-000002").touch()
        return {}

    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        old.save(4, write)
    assert names(tmp_path) == []
    assert not list(tmp_path.glob(".tmp-*")) and not (tmp_path / "LATEST").exists()


def test_a_writer_whose_files_a_later_attempt_has_removed_says_why(tmp_path: Path) -> None:
    old = claimed(tmp_path)

    def write(folder: Path) -> dict[str, FileEntry]:
        claimed(tmp_path, attempt=2)
        (folder / "state").write_text("state")
        return {}

    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        old.save(4, write)


def test_what_was_hashed_while_it_was_written_is_not_read_again(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    told = FileEntry(num_bytes=7, sha256="told")

    def write(folder: Path) -> dict[str, FileEntry]:
        (folder / "tensors").write_text("tensors")
        (folder / "state.json").write_text("state")
        return {"tensors": told}

    files = read_manifest(first.save(2, write)).files
    assert files["tensors"] == told
    assert files["state.json"] == FileEntry(num_bytes=5, sha256=hashlib.sha256(b"state").hexdigest())


def test_a_claim_that_the_pods_do_not_see_as_one_is_named(tmp_path: Path) -> None:
    first = claimed(tmp_path)

    def write(folder: Path) -> dict[str, FileEntry]:
        return {"optimizer-00002-of-00002.safetensors": FileEntry(num_bytes=1, sha256="")}

    with pytest.raises(UserError, match=r"optimizer-00002.* is not there.*remove checkpoint.shared"):
        first.save(2, write)
    assert names(tmp_path) == []


def test_a_later_attempt_counts_more_than_a_higher_step(tmp_path: Path) -> None:
    old = claimed(tmp_path, keep=1)
    save(old, 6)
    new = claimed(tmp_path, attempt=2, keep=1)
    save(new, 4)
    found = claimed(tmp_path, attempt=3).newest()
    assert found is not None
    assert (found[1].attempt, found[1].step) == (2, 4)
    assert names(tmp_path) == ["step-000004"]


def test_a_step_that_an_older_attempt_left_is_replaced(tmp_path: Path) -> None:
    save(claimed(tmp_path), 4, "old")
    path = save(claimed(tmp_path, attempt=2), 4, "new")
    assert (path / "model" / "data").read_text() == "new 4"


def test_checkpoints_of_another_job_are_refused(tmp_path: Path) -> None:
    save(claimed(tmp_path), 2)
    stranger = store(tmp_path, job_uid="another", attempt=2)
    stranger.begin_attempt()
    with pytest.raises(UserError, match="another job"):
        stranger.newest()


def test_the_best_checkpoint_is_kept_beside_the_newest_ones(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    assert first.best() is None
    save(first, 2)
    first.mark_best(2, reward=0.1)
    for step in (4, 6, 8):
        save(first, step)
    assert names(tmp_path) == ["step-000002", "step-000006", "step-000008"]
    assert claimed(tmp_path, attempt=2).best() == (2, 0.1)
    assert (tmp_path / "BEST").read_text().splitlines()[0] == "step-000002"


def test_a_better_checkpoint_takes_its_place(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    for step in (2, 4, 6, 8):
        save(first, step)
        first.mark_best(step, reward=step / 3)
    assert names(tmp_path) == ["step-000006", "step-000008"]
    assert first.best() == (8, 8 / 3)


def test_a_resume_takes_the_newest_checkpoint_and_not_the_best(tmp_path: Path) -> None:
    first = claimed(tmp_path, keep=1)
    save(first, 2)
    first.mark_best(2, reward=0.9)
    save(first, 4)
    found = claimed(tmp_path, attempt=2, keep=1).newest()
    assert found is not None and found[1].step == 4


def test_a_best_checkpoint_that_is_gone_is_none(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    first.mark_best(2, reward=0.9)
    assert first.best() is None


def test_a_lower_attempt_names_no_best_checkpoint(tmp_path: Path) -> None:
    first = claimed(tmp_path)
    save(first, 2)
    claimed(tmp_path, attempt=2)
    with pytest.raises(SupersededError):
        first.mark_best(2, reward=0.9)
    assert not (tmp_path / "BEST").exists()


def test_a_damaged_one_above_the_step_that_the_job_is_known_to_have_saved_is_called_damaged(
    tmp_path: Path,
) -> None:
    found = claimed(tmp_path, keep=1)
    save(found, 4)
    (save(found, 6) / "state.json").write_text("other")
    with pytest.raises(CheckpointCorruptError, match="none is whole"):
        found.newest(saved_step=4)
