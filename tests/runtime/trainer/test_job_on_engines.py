"""The runtime as a whole on real engines, without a cluster: two vLLM engines and a trainer of two ranks."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_job import LocalEngines, local_engines, start_trainer
from pod_builder import run_config

from grpo_api.contract.endpoints import ADMIN_TOKEN_FILE, DATA_TOKEN_FILE
from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

pytestmark = pytest.mark.engine

STEPS = 6


def copy_job(*, steps: int, weight: float = 1.0) -> RunConfig:
    """examples/copy-disaggregated.yaml with `steps` steps and a reward of this `weight`."""
    return run_config(
        rewards=[{"name": "copy", "builtin": "char_accuracy", "weight": weight}],
        algorithm={
            "steps": steps,
            "promptsPerStep": 16,
            "groupSize": 8,
            "optimizer": {"learningRate": 1e-3},
        },
        sampling={"maxTokens": 4},
        trainer={"processesPerNode": 2},
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        rollout={"replicas": 2},
        checkpoint={"everySteps": 2},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the engines, and of the job that completes."""
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[LocalEngines]:
    with local_engines(folder, copy_job(steps=1), count=2, is_forked=False) as started:
        yield started


@dataclass(frozen=True)
class CompleteJob:
    """Command lines and environments of its processes, the contents of its files, its metrics."""

    shown: Mapping[str, bytes]
    left: Mapping[str, bytes]
    records: list[MetricsRecord]


@pytest.fixture(scope="module")
def complete(folder: Path, engines: LocalEngines) -> CompleteJob:
    """A job that completes its few steps, too few to learn the task. The weight of its reward is -1, so that
    what engines sampled and what the reward function gave is seen to pass the weight."""
    trainer = start_trainer(folder, copy_job(steps=STEPS, weight=-1.0), engines, is_forked=False)
    trainer.wait_until(lambda progress: progress.step >= 1)
    shown = shown_by_processes(folder)
    code, message = trainer.end()
    assert code == 0, message
    assert message.progress is not None
    return CompleteJob(shown, left_behind(folder), read_metrics(folder / "output" / "metrics.jsonl"))


def shown_by_processes(folder: Path) -> dict[str, bytes]:
    """Command line and environment of every process that was started for the job in `folder`."""
    shown = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if str(folder).encode() in environment:
            shown[f"{process.name} environ"] = environment
            shown[f"{process.name} {command[:120]!r}"] = command
    return shown


def left_behind(folder: Path) -> dict[str, bytes]:
    """Every file of the job but the tokens' own: logs, termination messages, caches, checkpoints, reports."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE)
    }


def spellings(token: str) -> set[bytes]:
    return {token.encode(), base64.b64encode(token.encode()).rstrip(b"=")[:-1]}


def test_no_token_is_in_a_log_a_process_list_a_checkpoint_or_any_other_file(
    folder: Path, complete: CompleteJob
) -> None:
    # the search looked where there was something to find
    commands = " ".join(complete.shown)
    assert "trainer" in commands and "rollout" in commands and "ranks" in commands
    left = complete.left
    assert any(name.startswith("output/checkpoints") for name in left), sorted(left)
    assert {"output/metrics.jsonl", "engine-0.log", "log-1-0"} <= left.keys()
    tokens = [(folder / name).read_text().strip() for name in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE)]
    needles = set().union(*(spellings(token) for token in tokens))
    assert len(needles) == 4
    everything = {**complete.shown, **left}
    found = [where for where, text in everything.items() if any(needle in text for needle in needles)]
    assert found == []


def test_every_step_reports_the_reward_times_its_negative_weight(complete: CompleteJob) -> None:
    """That the weight turns the update around: test_trainer_pod.py. That such a reward is not learned:
    tests/runtime/algorithm/test_learning.py."""
    assert [record.step for record in complete.records] == list(range(1, STEPS + 1))
    for record in complete.records:
        assert record.values["reward"] == -record.values["rewards/copy/mean"]
        assert record.values["sync/max_probe_error"] < 1e-4
    assert any(record.values["reward"] < 0 for record in complete.records)


def test_a_killed_engine_stops_neither_the_training_nor_its_end(
    tmp_path: Path, complete: CompleteJob, engines: LocalEngines
) -> None:
    """The last test of this file: it leaves one engine."""
    # engines refuse a lower attempt than they have heard
    trainer = start_trainer(tmp_path, copy_job(steps=1000), engines, attempt=2)
    step = trainer.wait_until(lambda progress: progress.step >= 3).step
    engines.processes[1].kill()
    progress = trainer.wait_until(lambda progress: progress.step >= step + 5)
    assert progress.engines.current == 1

    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated")
    # no thread that is still bound to the dead engine held a rank back until it was killed
    assert message.message.startswith("asked to stop, and stopped at a step boundary")
    assert message.progress is not None
    assert message.progress.checkpoint_step == message.progress.step
