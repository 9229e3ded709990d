"""Saves of one model and its AdamW, as training waits for them."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_bench.errors import BenchError
from grpo_bench.pairs import Amounts, Way
from grpo_bench.random_model import random_model
from grpo_checkpoint.cases import Case
from grpo_runtime.model.load import load_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.checkpoint.contents import RunState, read_training_state
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.device import collective_backend, training_device
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


class _Saves:
    """One policy and optimizer, saved in both ways into folders of their own."""

    def __init__(self, case: Case, folder: Path, *, device: torch.device, ranks: Ranks) -> None:
        self._folder = folder
        write_tiny_model(folder / "tiny")
        self._tokenizer = load_tokenizer(folder / "tiny")
        self._model = random_model(
            case, vocabulary=case.vocabulary, num_kv_heads=case.num_heads, is_tied=True
        )
        policy = Policy(self._model, temperature=1.0, dtype=Dtype.FLOAT32)
        self._strategy = DDPStrategy(
            policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks, device=device
        )
        for _, tensor in self._strategy.optimizer_state():
            # numbers, as zeros may be faster
            tensor.uniform_()
        self._synchronous, self._threaded = (self._store(name) for name in ("synchronous", "thread"))
        self._saver = Saver(
            self._threaded,
            model=self._model,
            strategy=self._strategy,
            tokenizer=self._tokenizer,
            ranks=ranks,
            output_dir=folder,
            newest_step=None,
            origin=LocalModel(folder, "random", None),
            is_shared=False,
        )

    def save_and_wait(self, step: int) -> Amounts:
        """Training is blocked until the checkpoint is committed."""
        started = time.perf_counter()
        self._synchronous.save(step, lambda folder: self._write(folder, RunState(step=step)))
        seconds = time.perf_counter() - started
        return {"seconds that training waits": seconds, "seconds to the commit": seconds}

    def save_in_a_thread(self, step: int) -> Amounts:
        """Training is blocked until everything is copied."""
        started = time.perf_counter()
        self._saver.save(RunState(step=step))
        waited = time.perf_counter() - started
        asyncio.run(self._saver.wait())
        self._saver.poll()
        assert self._saver.newest_seconds is not None
        return {"seconds that training waits": waited, "seconds to the commit": self._saver.newest_seconds}

    def require_same(self) -> None:
        """Raise BenchError when the two ways have not saved the same tensors."""
        first, second = (target.newest() for target in (self._synchronous, self._threaded))
        assert first is not None and second is not None
        mine, others = read_training_state(first[0]), read_training_state(second[0])
        for found, expected in ((mine.model, others.model), (mine.optimizer, others.optimizer)):
            if found.keys() != expected.keys() or not all(found[n].equal(expected[n]) for n in found):
                raise BenchError("the two ways have not saved the same tensors")

    def _store(self, name: str) -> CheckpointStore:
        target = CheckpointStore(self._folder / name / "checkpoints", job_uid="bench", attempt=1, keep=1)
        (self._folder / name).mkdir()
        target.begin_attempt()
        return target

    def _write(self, folder: Path, state: RunState) -> dict[str, FileEntry]:
        """What the trainer did. The store then syncs all files and reads them to hash them."""
        save_policy(self._model, tokenizer=self._tokenizer, into=folder / "model")
        moments = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in self._strategy.optimizer_state()
        }
        save_file(moments, folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps(asdict(state)))
        return {}


@contextmanager
def synchronous_and_in_a_thread(
    case: Case, *, folder: Path, device: str, ranks: Ranks
) -> Iterator[tuple[Way, Way]]:
    """Both ways, of a model on that device. Raises BenchError when they do not save the same."""
    with TemporaryDirectory(prefix="grpo-bench-", dir=folder) as place:
        saves = _Saves(case, Path(place), device=_device(device), ranks=ranks)
        saves.save_and_wait(1)
        saves.save_in_a_thread(1)
        saves.require_same()
        yield (
            Way("synchronous", lambda pair: saves.save_and_wait(2 + pair)),
            Way("in a thread", lambda pair: saves.save_in_a_thread(2 + pair)),
        )


def alone(device: str) -> Ranks:
    """This process as rank 0 of 1, which trains on that device. A process can meet others only once."""
    backend = collective_backend(_device(device))
    return Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend=backend, stop=StopRequest())


def _device(name: str) -> torch.device:
    return training_device(local_rank=0) if name == "cuda" else torch.device(name)
