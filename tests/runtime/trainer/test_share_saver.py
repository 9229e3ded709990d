"""What a rank other than 0 has to do with a save. Here it is the only rank, and nobody hears it."""

import errno
import os
from concurrent.futures import wait
from pathlib import Path

import pytest
from still_strategy import StillStrategy

from grpo_runtime.errors import VolumeFullError
from grpo_runtime.trainer.checkpoint.host_copy import HostCopier
from grpo_runtime.trainer.checkpoint.share_saver import ShareSaver
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Ranks


class FullStore(CheckpointStore):
    """A volume without space."""

    def unfinished(self, step: int) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_rank_that_cannot_write_its_share_says_so_in_its_main_thread(ranks: Ranks, tmp_path: Path) -> None:
    strategy = StillStrategy(tmp_path / "tiny")
    saver = ShareSaver(
        FullStore(tmp_path, job_uid="uid", attempt=1, keep=1),
        model=strategy.model,
        strategy=strategy,  # type: ignore[arg-type]
        ranks=ranks,
        output_dir=tmp_path,
        is_shared=True,
    )
    saver.check()
    saver.save(2)
    assert saver._in_flight is not None
    wait([saver._in_flight], timeout=60)
    with pytest.raises(VolumeFullError, match=f"the volume of {tmp_path} is full"):
        saver.check()


def test_ranks_that_write_copy_each_tensor_once_and_all_others_nothing(tmp_path: Path) -> None:
    strategy = StillStrategy(tmp_path)
    copies = [
        HostCopier(strategy.model, strategy, rank=rank, num_writers=2).copy()  # type: ignore[arg-type]
        for rank in (0, 1, 2)
    ]
    for kind, tensors in (("model", strategy.model_state()), ("optimizer", strategy.optimizer_state())):
        names = [name for copy in copies for name in getattr(copy, kind)]
        assert len(names) == len(set(names))
        saved = dict(tensors)
        assert set(names) == saved.keys()
        assert all(getattr(copy, kind) for copy in copies[:2]) and not getattr(copies[2], kind)
        # a copy, and not the tensor
        for copy in copies:
            for name, tensor in getattr(copy, kind).items():
                assert tensor.equal(saved[name]) and tensor.data_ptr() != saved[name].data_ptr()
