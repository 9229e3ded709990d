"""Files and folders that a reader sees whole or not at all."""

from pathlib import Path

import pytest

from grpo_runtime.storage.files import replaced_folder, write_atomically


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_folder_takes_the_place_of_the_one_before_with_its_own_files_alone(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with replaced_folder(tmp_path / "model") as folder:
            (folder / name).write_text(name)
    assert names_in(tmp_path) == ["model", "second"]


def test_a_folder_that_is_not_filled_leaves_the_one_before_and_is_not_in_the_way_of_the_next(
    tmp_path: Path,
) -> None:
    with replaced_folder(tmp_path / "model") as folder:
        (folder / "weights").write_text("of before")
    with pytest.raises(OSError, match="no space"), replaced_folder(tmp_path / "model") as folder:
        (folder / "half").write_text("of the next")
        raise OSError("no space")
    assert names_in(tmp_path / "model") == ["weights"]

    with replaced_folder(tmp_path / "model") as folder:
        assert names_in(folder) == []
        (folder / "weights").write_text("whole")
    assert names_in(tmp_path) == ["model", "weights"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, durable: bool) -> None:
    for content in ("first", b"second"):
        write_atomically(tmp_path / "state", content, durable=durable)
    assert (tmp_path / "state").read_bytes() == b"second"
    assert names_in(tmp_path) == ["state"]
