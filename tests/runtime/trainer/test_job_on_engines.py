"""The runtime as a whole on real engines, without a cluster: two vLLM engines and a trainer of two ranks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_job import LocalEngines, local_engines, start_trainer
from pod_builder import run_config

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics import MetricsRecord, read_metrics

pytestmark = pytest.mark.engine

ATTEMPTS = iter(range(1, 100))
"""Engines refuse a lower attempt than they have heard."""


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
        checkpoint={"everySteps": 50},
    )


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngines]:
    with local_engines(tmp_path_factory.mktemp("engines"), copy_job(steps=1), count=2) as started:
        yield started


def train(folder: Path, run: RunConfig, engines: LocalEngines) -> list[MetricsRecord]:
    code, message = start_trainer(folder, run, engines, attempt=next(ATTEMPTS)).end()
    assert code == 0, message
    assert message.progress is not None
    assert message.progress.stale_samples == 0
    return read_metrics(folder / "output" / "metrics.jsonl")


def test_a_reward_with_the_wrong_sign_is_not_learned(tmp_path: Path, engines: LocalEngines) -> None:
    # With the right sign the reward is .7 after as many steps.
    records = train(tmp_path, copy_job(steps=100, weight=-1.0), engines)
    true_reward = [record.values["rewards/copy/mean"] for record in records]
    assert max(true_reward[-10:]) < 0.05
    assert records[-1].values["reward"] == -true_reward[-1]


def test_a_killed_engine_stops_neither_the_training_nor_its_end(
    tmp_path: Path, engines: LocalEngines
) -> None:
    """The last test of this file: it leaves one engine."""
    trainer = start_trainer(tmp_path, copy_job(steps=1000), engines, attempt=next(ATTEMPTS))
    step = trainer.wait_until(lambda progress: progress.step >= 3).step
    engines.processes[1].kill()
    progress = trainer.wait_until(lambda progress: progress.step >= step + 5)
    assert (progress.engines.current, progress.stale_samples) == (1, 0)

    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated")
    # no thread that is still bound to the dead engine held a rank back until it was killed
    assert message.message.startswith("asked to stop, and stopped at a step boundary")
    assert message.progress is not None
    assert message.progress.checkpoint_step == message.progress.step
