"""A save: training waits for copies, a thread writes and commits them, and its error comes back."""

import asyncio
import errno
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from still_strategy import StillStrategy, saver_of, store
from transformers import AutoModelForCausalLM

from grpo_runtime.errors import SupersededError, VolumeFullError
from grpo_runtime.trainer.checkpoint.contents import RunState, read_run_state, read_training_state
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.saver import SECONDS, WAITED
from grpo_runtime.trainer.checkpoint.store import CheckpointStore

DEADLINE_SECONDS = 60.0


class GatedStore(CheckpointStore):
    """Writes once the gate is open, and may find that the volume is full."""

    def __init__(self, folder: Path, *, is_full: bool = False) -> None:
        super().__init__(folder, job_uid="uid", attempt=1, keep=2)
        self.gate = threading.Event()
        self.is_writing = threading.Event()
        self._is_full = is_full

    def save(self, step: int, write: Callable[[Path], Mapping[str, FileEntry]]) -> Path:
        self.is_writing.set()
        assert self.gate.wait(DEADLINE_SECONDS)
        if self._is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().save(step, write)


@pytest.fixture
def strategy(tmp_path: Path) -> StillStrategy:
    return StillStrategy(tmp_path / "tiny")


async def test_training_goes_on_while_a_save_is_written_and_cannot_change_it(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    target = GatedStore(tmp_path / "checkpoints")
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=tmp_path)
    strategy.set(2.0)
    saver.save(RunState(step=2, num_tokens=7))
    assert target.is_writing.wait(DEADLINE_SECONDS)
    strategy.set(3.0)
    assert not saver.poll() and saver.is_saving
    assert saver.newest_step is None and target.newest() is None
    assert not saver.is_new(RunState(step=2)) and saver.is_new(RunState(step=3))
    target.gate.set()
    await saver.wait()
    assert saver.poll() and not saver.is_saving and not saver.poll()
    assert saver.newest_step == 2
    found = target.newest()
    assert found is not None
    assert read_run_state(found[0]) == RunState(step=2, num_tokens=7)
    tensors = read_training_state(found[0])
    assert all(bool((weight == 2.0).all()) for weight in tensors.model.values())
    assert all(bool((moment == -2.0).all()) for moment in tensors.optimizer.values())


async def test_the_memory_of_a_copy_is_used_again_and_the_next_save_has_its_own_numbers(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    target = store(tmp_path)
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=tmp_path)
    for step in (1, 2):
        strategy.set(float(step))
        saver.save(RunState(step=step))
        await saver.wait()
        assert saver.poll()
    for step in (1, 2):
        tensors = read_training_state(tmp_path / "checkpoints" / f"step-{step:06d}")
        assert all(bool((weight == step).all()) for weight in tensors.model.values())


async def test_the_files_are_those_that_transformers_would_save(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    target = store(tmp_path)
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=tmp_path)
    saver.save(RunState(step=1))
    await saver.wait()
    saver.poll()
    mine = tmp_path / "checkpoints" / "step-000001" / "model"
    strategy.model.save_pretrained(tmp_path / "theirs")
    strategy.tokenizer.save_pretrained(tmp_path / "theirs")
    assert {path.name for path in mine.iterdir()} == {path.name for path in (tmp_path / "theirs").iterdir()}
    found, expected = (load_file(folder / "model.safetensors") for folder in (mine, tmp_path / "theirs"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (mine / "config.json").read_text() == (tmp_path / "theirs" / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(mine)
    for name, parameter in strategy.model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)


class GatedTokenizer:
    """Is written behind the weights, once the gate is open."""

    def __init__(self) -> None:
        self.gate, self.is_reached = threading.Event(), threading.Event()

    def save_pretrained(self, folder: Path) -> None:
        self.is_reached.set()
        assert self.gate.wait(DEADLINE_SECONDS)


def test_the_model_is_written_in_a_thread_which_counts_its_bytes(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    tokenizer = GatedTokenizer()
    saver = saver_of(strategy, store(tmp_path), output_dir=tmp_path, tokenizer=tokenizer)
    strategy.set(2.0)
    written = saver.export()
    assert tokenizer.is_reached.wait(DEADLINE_SECONDS)
    assert not written.done() and not (tmp_path / "model").exists()
    num_bytes = saver.num_bytes_written
    assert num_bytes == (tmp_path / ".model.tmp" / "model.safetensors").stat().st_size
    tokenizer.gate.set()
    assert written.result(DEADLINE_SECONDS) is None
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert all(bool((weight == 2.0).all()) for weight in weights.values())


def test_a_full_volume_is_named_by_the_export_too(strategy: StillStrategy, tmp_path: Path) -> None:
    tokenizer = Mock(save_pretrained=Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    saver = saver_of(strategy, store(tmp_path), output_dir=tmp_path, tokenizer=tokenizer)
    with pytest.raises(VolumeFullError, match=f"the volume of {tmp_path} is full"):
        saver.export().result(DEADLINE_SECONDS)


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_a_full_volume_is_named_to_training_once(
    strategy: StillStrategy, tmp_path: Path, is_waited_for: bool
) -> None:
    target = GatedStore(tmp_path / "checkpoints", is_full=True)
    saver = saver_of(strategy, target, output_dir=tmp_path)
    saver.save(RunState(step=1))
    target.gate.set()
    if is_waited_for:
        await saver.wait()
    else:
        saver.finish(timeout_seconds=DEADLINE_SECONDS)
    with pytest.raises(VolumeFullError, match=f"the volume of {tmp_path} is full, .* lower checkpoint.keep"):
        saver.poll()
    assert saver.newest_step is None and not saver.poll()


async def test_an_attempt_that_was_fenced_off_learns_it_from_its_save(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    target = GatedStore(tmp_path / "checkpoints")
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=tmp_path)
    saver.save(RunState(step=1))
    store(tmp_path, attempt=2).begin_attempt()
    target.gate.set()
    await saver.wait()
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        saver.poll()
    assert not list((tmp_path / "checkpoints").glob("step-*"))


async def test_the_seconds_of_a_save_are_told_once_it_is_committed(
    strategy: StillStrategy, tmp_path: Path
) -> None:
    target = GatedStore(tmp_path / "checkpoints")
    target.begin_attempt()
    saver = saver_of(strategy, target, output_dir=tmp_path)
    saver.save(RunState(step=1))
    first = saver.take_metrics()
    assert first.keys() == {WAITED} and first[WAITED] > 0
    assert saver.take_metrics() == {}
    waiting = asyncio.create_task(saver.wait())
    await asyncio.sleep(0)
    target.gate.set()
    await waiting
    assert saver.poll()
    second = saver.take_metrics()
    assert second.keys() == {SECONDS} and second[SECONDS] >= first[WAITED]
    assert saver.newest_seconds == second[SECONDS]
    # waiting for the save before is part of the next one
    saver.save(RunState(step=2))
    assert saver.take_metrics()[WAITED] > 0
    await saver.wait()
