"""A rank over a scripted engine, which is a fake, that ends with kill -9 where SCRIPTED_KILL says, or is
asked to stop there. In mode Colocated each rank has one of its own, and in asynchronous training it samples
while the policy is trained.

`scripted_rank.py RUN_DIR`: SCRIPTED_KILL is POINT:STEP, with steps from 0, SCRIPTED_SIGNAL is SIGTERM for a
request to stop, SCRIPTED_LOG is where everything asked of the engine is written, and SCRIPTED_FORGOTTEN, of
asynchronous training, is where the journal of steps is copied before it is removed.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from fake_engines import FakeEngines

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec.asynchronous import StalePolicy
from grpo_runtime.data.seeds import segment_seed
from grpo_runtime.engines.colocated.rank_engine import PHASES, RankSync
from grpo_runtime.engines.fleet.engine_calls import joined
from grpo_runtime.rollouts.frames import decode_frames
from grpo_runtime.rollouts.interface import (
    Engines,
    GenerateRequest,
    OnFinished,
    OnRead,
    Probe,
    Rollout,
    SyncReport,
)
from grpo_runtime.rollouts.journal.journal import JOURNAL
from grpo_runtime.rollouts.journal.reader import attempts_in, file_of, step_folders
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.rank import run_rank
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.strategy.registry import strategy_of
from grpo_runtime.weight_sync.source import TensorSpec, WeightSource

NUM_IN_TIME = 3
"""Samples of a step that are finished and on disk when a kill comes in generation; in asynchronous training
samples since the engine got the weights of that step."""


class Script:
    """Where the process ends, and what it has asked for until then."""

    def __init__(self) -> None:
        self._kill = os.environ.get("SCRIPTED_KILL", "")
        self._signal = signal.Signals[os.environ.get("SCRIPTED_SIGNAL", "SIGKILL")]
        self._num_times = 0
        self.has_asked_to_stop = False
        """Whether it has sent SIGTERM, after which the process lives on."""

    def reach(self, point: str, step: int) -> None:
        """End here, if that is the point."""
        if self._kill == f"{point}:{step}" and not self.has_asked_to_stop:
            self.end()

    def end(self) -> None:
        """End this process, or ask it to stop."""
        self.has_asked_to_stop = self._signal is signal.SIGTERM
        os.kill(os.getpid(), self._signal)

    def is_stopped_in(self, step: int) -> bool:
        """Whether it was asked to stop, or will be while this step is generated: a checkpoint is saved beside
        the next step."""
        return self.has_asked_to_stop or (self._signal is signal.SIGTERM and self.is_at("saving", step))

    def is_at(self, point: str, step: int) -> bool:
        return self._kill == f"{point}:{step}"

    def has_come(self, point: str, step: int, *, times: int) -> bool:
        """Whether that is the point, and was asked about so many times, in its step and later ones."""
        found, _, of_step = self._kill.partition(":")
        if found != point or step < int(of_step):
            return False
        self._num_times += 1
        return self._num_times == times

    def reach_on_disk(self, point: str, step: int, *, settings: TrainerSettings, num_samples: int) -> None:
        """End here, if that is the point, once so many samples of the step are written: the journal has its
        own thread."""
        if not self.is_at(point, step):
            return
        journal = file_of(settings.output_dir / JOURNAL, step=step, attempt=settings.attempt)
        self._end_once(lambda: len(_seeds_in(journal)) >= num_samples)

    def end_once_stored(self, seed: int, *, settings: TrainerSettings) -> None:
        """End here once the sample with this seed is written, in any step."""

        def is_written() -> bool:
            # removed are only older ones
            newest = sorted(step_folders(settings.output_dir / JOURNAL).items())[-2:]
            files = (attempts_in(folder).get(settings.attempt) for _, folder in newest)
            return any(seed in _seeds_in(file) for file in files if file is not None)

        self._end_once(is_written)

    def _end_once(self, is_written: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_written():
            assert time.monotonic() < deadline, "the samples never came to the disk"
            time.sleep(0.005)
        self.end()

    def note(self, **what: Any) -> None:
        """Write what was asked of the engine."""
        with Path(os.environ["SCRIPTED_LOG"]).open("a") as file:
            file.write(json.dumps(what) + "\n")


def _seeds_in(journal: Path) -> set[int]:
    """Those of the samples in a file of the journal."""
    frames, _ = decode_frames(journal.read_bytes() if journal.exists() else b"")
    return {frame.header["seed"] for frame in frames if frame.header["kind"] == "generated"}


class ScriptedEngines(FakeEngines):
    """A fake that samples each request alone, so that a step of which some are replayed has the same bits."""

    def __init__(self, settings: TrainerSettings, *, script: Script) -> None:
        super().__init__(settings)
        self._settings = settings
        self._script = script
        self._num_asked = self._num_given = 0

    async def rest(self) -> None:
        self._num_asked = self._num_given = 0
        self._script.note(rest=True)

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        self._script.reach("between steps", version.step)
        self._script.note(sync=version.step)
        return await super().sync(weights, version=version, probe=probe, on_read=on_read)

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        assert self._version is not None and (stays_awake or on_finished is not None)
        step, rollouts = self._version.step, []
        if len(requests) < self._num_asked:
            # the second turn of those that have one; the others are finished
            self._wait_until_on_disk(self._num_asked - len(requests), step=step, point="turn")
        self._num_asked = len(requests) if stays_awake else 0
        num_before = self._num_given
        for index, request in enumerate(requests):
            await asyncio.sleep(0)
            if index == NUM_IN_TIME:
                self._wait_until_on_disk(index, step=step, point="generation")
            if self._script.is_stopped_in(step):
                await asyncio.Event().wait()  # nothing finishes before the stop
            self._script.note(seed=request.seed)
            [rollout] = self._sample([request])
            if on_finished is not None:
                on_finished(index, rollout)
                self._num_given += 1
            if num_before:
                self._wait_until_on_disk(num_before + 1, step=step, point="second round")
            rollouts.append(rollout)
        self._wait_until_on_disk(len(requests), step=step, point="generated")
        if not stays_awake:
            self._num_given = 0
        return rollouts

    def _wait_until_on_disk(self, count: int, *, step: int, point: str) -> None:
        self._script.reach_on_disk(point, step, settings=self._settings, num_samples=count)


@dataclass(frozen=True)
class _Copied:
    """Weights on their way: a `WeightSource` of the trainer's as they were."""

    whole: Mapping[str, torch.Tensor]

    def layout(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, tuple(of.shape), of.dtype) for name, of in self.whole.items())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.whole.items()


class ScriptedConcurrentEngines(FakeEngines):
    """A fake for asynchronous training: calls for several groups are open, each is sampled one request after
    the other, and new weights are under way meanwhile. The points of a kill count from the weights of its
    step on. Where the run drops stale groups, the first call with the weights of each of the steps 1 to 3
    gets one sample and no more. Where the journal takes what is handed over, every sample is."""

    is_concurrent = True

    def __init__(self, settings: TrainerSettings, *, script: Script) -> None:
        super().__init__(settings)
        self._settings = settings
        self._script = script
        asynchronous = settings.run_config.asynchronous
        assert asynchronous is not None
        self._leaves_stale = asynchronous.stale is StalePolicy.DROP
        self._hands_over = asynchronous.journal_segments
        self._num_calls = 0
        """Since it got its weights."""

    async def sync(
        self,
        weights: WeightSource,
        *,
        version: PolicyVersion,
        probe: Probe | None,
        on_read: OnRead | None = None,
    ) -> SyncReport:
        self._script.reach("between steps", version.step)
        self._script.note(sync=version.step)
        copied = _Copied({name: tensor.detach().clone() for name, tensor in weights.tensors()})
        if on_read is not None:
            on_read()
        for _ in range(NUM_IN_TIME):
            # calls continue with the weights of before
            await asyncio.sleep(0)
        self._script.reach("update in flight", version.step)
        report = await super().sync(copied, version=version, probe=probe)
        self._num_calls = 0
        return report

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        assert self._version is not None and stays_awake
        self._num_calls += 1
        is_left = self._leaves_stale and self._num_calls == 1 and 1 <= self._version.step <= 3
        rollouts: list[Rollout] = []
        for index, request in enumerate(requests):
            # so that groups do not finish in the order in which they begin
            for _ in range(1 + request.seed % 3):
                await asyncio.sleep(0)
            if is_left and rollouts:
                await asyncio.Event().wait()
            if self._has_come("turn", times=NUM_IN_TIME):
                self._script.end()
            so_far = request.so_far
            self._script.note(seed=request.seed, num_so_far=len(so_far.completion_ids) if so_far else 0)
            if self._hands_over and so_far is None:
                so_far = self._begin(request)
                if on_finished is not None:
                    on_finished(index, so_far)
                if self._has_come("handed over", times=NUM_IN_TIME):
                    self._script.end_once_stored(request.seed, settings=self._settings)
                await asyncio.sleep(0)
            rollout = self._go_on(request, so_far)
            rollouts.append(rollout)
            if on_finished is not None:
                on_finished(index, rollout)
            if self._has_come("generation", times=NUM_IN_TIME):
                self._script.end_once_stored(request.seed, settings=self._settings)
        if self._has_come("generated", times=1):
            self._script.end_once_stored(requests[-1].seed, settings=self._settings)
        return rollouts

    def _begin(self, request: GenerateRequest) -> Rollout:
        """The first half of a completion."""
        [rollout] = self._sample([replace(request, max_tokens=self._max_tokens // 2)])
        return replace(rollout, is_terminated=False, is_aborted=True)

    def _go_on(self, request: GenerateRequest, so_far: Rollout | None) -> Rollout:
        """A whole completion, from what there is of it."""
        if so_far is None:
            [rollout] = self._sample([request])
            return rollout
        num_so_far = len(so_far.completion_ids)
        follows = replace(
            request,
            prompt_ids=request.prompt_ids + so_far.completion_ids,
            seed=segment_seed(request.seed, start=num_so_far),
            max_tokens=self._max_tokens - num_so_far,
        )
        [rollout] = self._sample([follows])
        return joined(so_far, rollout)

    def _has_come(self, point: str, *, times: int) -> bool:
        assert self._version is not None
        return self._script.has_come(point, self._version.step, times=times)


class ScriptedColocatedEngine(FakeEngines):
    """The fake of one rank; see `EngineOfRank`. Only that of rank 0 ends its process."""

    is_starting_again = False

    def __init__(self, settings: TrainerSettings, *, script: Script, rank: int) -> None:
        super().__init__(settings, name=f"fake-engine-{rank}")
        self._settings = settings
        algorithm = settings.run_config.algorithm
        self._num_samples = algorithm.prompts_per_step * algorithm.group_size
        self._script = script
        self._is_first = rank == 0
        self.num_finished = 0

    def sync(self, weights: WeightSource, *, version: PolicyVersion, probe: Probe | None) -> RankSync:  # type: ignore[override]
        if self._is_first:
            self._script.reach("between steps", version.step)
            self._script.note(sync=version.step)
        report = asyncio.run(super().sync(weights, version=version, probe=probe))
        return RankSync((0.0,) * len(PHASES), report.num_bytes, report.num_bytes, report.max_probe_error)

    def rest(self) -> None:  # type: ignore[override]
        self.num_finished = 0

    def generate(  # type: ignore[override]
        self,
        requests: Sequence[GenerateRequest],
        *,
        on_finished: OnFinished | None = None,
        stays_awake: bool = False,
    ) -> list[Rollout]:
        assert on_finished is not None
        rollouts = []
        for index, request in enumerate(requests):
            if index == NUM_IN_TIME:
                self._wait_until_on_disk(index, point="generation")
            self._script.note(seed=request.seed)
            [rollout] = self._sample([request])
            on_finished(index, rollout)
            rollouts.append(rollout)
            self.num_finished = len(rollouts)
        self._wait_until_on_disk(self._num_samples, point="generated")
        return rollouts

    def _wait_until_on_disk(self, count: int, *, point: str) -> None:
        if self._is_first:
            assert self._version is not None
            self._script.reach_on_disk(point, self._version.step, settings=self._settings, num_samples=count)


class KilledInTraining:
    """A strategy of the product that ends in the middle of an update."""

    def __init__(self, strategy: Strategy, *, script: Script, updates_each: int) -> None:
        self._strategy = strategy
        self._script = script
        self._updates_each = updates_each
        """How many there are in a step."""
        self._num_updates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    @property
    def _step(self) -> int:
        """In an attempt that began with step 0."""
        return self._num_updates // self._updates_each

    def micro_batch(self, *, is_last: bool) -> Any:
        self._script.reach("scored", self._step)
        return self._strategy.micro_batch(is_last=is_last)

    def backward(self, loss: Any) -> None:
        self._script.reach("training", self._step)
        self._strategy.backward(loss)

    def optimizer_step(self, *, step: int) -> tuple[float, float]:
        found = self._strategy.optimizer_step(step=step)
        self._num_updates += 1
        if self._num_updates % self._updates_each:
            self._script.reach("between updates", step)
        else:
            self._script.reach("trained", step)
        return found


def kill_around_renames(script: Script) -> None:
    """From now on a checkpoint that gets its name may end the process, before or after it."""
    rename: Callable[[Path, Any], Path] = Path.rename

    def reach_and_rename(path: Path, target: Any) -> Path:
        is_commit = path.name.startswith(".tmp-step-") and Path(target).name.startswith("step-")
        step = int(Path(target).name.removeprefix("step-")) if is_commit else -1
        script.reach("saving", step)
        renamed = rename(path, target)
        script.reach("saved", step)
        return renamed

    Path.rename = reach_and_rename  # type: ignore[method-assign, assignment]


def copy_what_is_forgotten(forgotten: Path) -> None:
    """From now on the journal of a step is copied into `forgotten` before it is removed."""
    remove: Callable[[Path], None] = shutil.rmtree

    def copy_and_remove(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path).parent.name == JOURNAL:
            shutil.copytree(path, forgotten / Path(path).name, dirs_exist_ok=True)
        remove(path, *arguments, **options)

    shutil.rmtree = copy_and_remove  # type: ignore[assignment]


def connect_scripted(settings: TrainerSettings, *, script: Script) -> Engines:
    if settings.run_config.asynchronous is None:
        return ScriptedEngines(settings, script=script)
    copy_what_is_forgotten(Path(os.environ["SCRIPTED_FORGOTTEN"]))
    return ScriptedConcurrentEngines(settings, script=script)


def run_scripted(run_dir: Path, *, rank: int) -> NoReturn:
    """Run the rank that the environment describes."""
    script = Script()
    if rank == 0:
        kill_around_renames(script)

    def make_strategy(policy: Any, **arguments: Any) -> Any:
        from grpo_runtime.settings import read_trainer_settings

        run_config = read_trainer_settings(os.environ).run_config
        strategy = strategy_of(run_config)(policy, **arguments)
        if rank != 0:
            # killed with the first
            return strategy
        algorithm = run_config.algorithm
        updates_each = algorithm.num_iterations * algorithm.minibatches
        return KilledInTraining(strategy, script=script, updates_each=updates_each)

    run_rank(
        os.environ,
        run_dir=run_dir,
        connect=lambda settings: connect_scripted(settings, script=script),
        start_engine=lambda settings: ScriptedColocatedEngine(settings, script=script, rank=rank),
        make_strategy=make_strategy,
    )


if __name__ == "__main__":
    run_scripted(Path(sys.argv[1]), rank=int(os.environ["RANK"]))
