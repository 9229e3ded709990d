"""Mode Colocated as a whole, without a cluster: trainer pods whose ranks hold vLLM.

That an attempt continues from what one that ended with 143 has saved, and that the job completes:
test_trainer_pod.py and test_strategy_seam.py, over FakeEngines.
"""

from pathlib import Path

import pytest
import yaml
from local_job import start_trainer
from pod_builder import run_config

from grpo_api.contract.progress import EngineCounts
from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import DatasetSpec, EvalSpec
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

pytestmark = pytest.mark.engine

STEPS = 60
"""The reward is eight times that of the beginning after as many; how far it comes:
tests/runtime/algorithm/test_learning.py."""


def copy_job(
    *,
    num_ranks: int = 2,
    steps: int,
    ranks_per_engine: int = 1,
    sleep_level: int = 1,
    strategy: str | None = None,
    threads: int | None = None,
    process: str | None = None,
    executor: str | None = None,
) -> RunConfig:
    """examples/copy-colocated.yaml with `steps` steps."""
    return run_config(
        mode="Colocated",
        rewards=[{"name": "copy", "builtin": "char_accuracy"}],
        algorithm={
            "steps": steps,
            "promptsPerStep": 16,
            "groupSize": 8,
            "optimizer": {"learningRate": 1e-3},
        },
        sampling={"maxTokens": 4},
        trainer={"processesPerNode": num_ranks, "strategy": strategy, "threadsPerProcess": threads},
        engine={
            "maxModelLen": 64,
            "kvCacheMemory": "64Mi",
            "tensorParallelSize": ranks_per_engine,
            "sleepLevel": sleep_level,
            "process": process,
        },
        checkpoint={"everySteps": 20},
        **({"colocated": {"executor": executor}} if executor else {}),
    )


def records(folder: Path) -> list[MetricsRecord]:
    return read_metrics(folder / "output" / "metrics.jsonl")


def tokens(found: list[MetricsRecord]) -> list[float]:
    """A checksum of all completions of each step."""
    return [record.values["completions/crc32"] for record in found]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[MetricsRecord]:
    """Two ranks, two engines; rank 1 is killed once, and the next attempt is asked to stop."""
    folder, run = tmp_path_factory.mktemp("job"), copy_job(steps=10 * STEPS)
    trainer = start_trainer(folder, run, attempt=1)
    trainer.wait_until(lambda progress: progress.step >= 22)
    trainer.kill_rank(1)
    code, message = trainer.end()
    assert (code, message.reason, message.rank) == (137, "Killed", 1)

    trainer = start_trainer(folder, run, attempt=2)
    resumed = trainer.wait_until(lambda progress: progress.step >= STEPS)
    assert resumed.resumed_from_step == 20
    assert resumed.engines == EngineCounts(desired=2, known=2, current=2)
    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated"), trainer.log()
    assert message.progress is not None
    assert message.progress.checkpoint_step == message.progress.step
    return records(folder)


def test_the_copy_task_is_learned_through_a_kill(learned: list[MetricsRecord]) -> None:
    assert {record.attempt for record in learned} == {1, 2}
    rewards = {record.step: record.values["reward"] for record in learned}
    assert sorted(rewards) == list(range(1, len(rewards) + 1))
    at_first = sum(rewards[step] for step in range(1, 11)) / 10
    at_last = sum(rewards[step] for step in range(STEPS - 9, STEPS + 1)) / 10
    # it grows by a half every five steps, so that a CPU which rounds otherwise may be some steps behind
    assert at_first < 0.05
    assert at_last > 3 * at_first


def test_after_every_sync_engines_and_trainer_agree(learned: list[MetricsRecord]) -> None:
    assert max(record.values["sync/max_probe_error"] for record in learned) < 1e-4
    name = "sampling/sampling_logp_difference/max"
    # a step in which no group differs computes no token
    computed = [record.values[name] for record in learned if record.values["batch/computed_share"] > 0]
    assert max(computed) < 1e-4
    assert {record.values["sync/engines"] for record in learned} == {2.0}


@pytest.mark.matrix
@pytest.mark.parametrize("job", ["job.yaml", "agent-job.yaml"], ids=["a rollout function", "an agent"])
def test_a_policy_learns_to_call_the_calculator_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    example = Path(__file__).parents[3] / "examples" / "calculator"
    monkeypatch.setenv("PYTHONPATH", str(example))
    sections = yaml.safe_load((example / job).read_text())["spec"]
    sections["dataset"]["source"] = f"file://{example}/train.jsonl"
    if function := sections["sampling"].get("rolloutFunction"):
        sections["sampling"]["rolloutFunction"] = {"function": "calculator:with_calculator", "maxTurns": 3}
        assert function["configMap"]["function"] == "with_calculator"
    else:
        [environment] = sections["environments"]
        assert environment.pop("configMap")["function"] == "agent"
        environment["function"] = "calculator:agent"
        # each call takes some ms of one process
        sections["algorithm"]["steps"] = 36
    del sections["trainer"]
    trainer = start_trainer(tmp_path, run_config(**sections))
    code, message = trainer.end()
    assert code == 0, (message, trainer.log())
    found = [record.values for record in records(tmp_path)]
    rewards = [values["reward"] for values in found]
    assert sum(rewards[:5]) / 5 < 0.15
    # .73 to 1, as the seed and a CPU's rounding have it
    assert sum(rewards[-5:]) / 5 > 0.5, rewards
    # of `=56` only the first character was sampled, with the probability that the trainer computes
    assert found[-1]["completions/mean_length"] < 3.0
    name = "sampling/sampling_logp_difference/max"
    assert max(values[name] for values in found if values["batch/computed_share"] > 0) < 1e-4


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(copy_job(num_ranks=1, steps=5, sleep_level=0, threads=2), marks=pytest.mark.matrix),
        copy_job(num_ranks=2, steps=5, ranks_per_engine=2, sleep_level=2),
        pytest.param(copy_job(num_ranks=2, steps=5, strategy="FSDP2"), marks=pytest.mark.matrix),
        pytest.param(copy_job(num_ranks=2, steps=5, strategy="ZeRO2"), marks=pytest.mark.matrix),
        pytest.param(copy_job(num_ranks=2, steps=5, strategy="ZeRO3"), marks=pytest.mark.matrix),
    ],
    ids=["one rank of two threads", "two ranks, one engine", "FSDP2", "ZeRO2", "ZeRO3"],
)
def test_seeds_decide_the_tokens_however_ranks_share_engines(
    tmp_path: Path, learned: list[MetricsRecord], run: RunConfig
) -> None:
    trainer = start_trainer(tmp_path, run)
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"
    found = records(tmp_path)
    assert tokens(found) == tokens(learned[:5])
    assert max(record.values["sync/max_probe_error"] for record in found) < 1e-4


@pytest.mark.parametrize("process", ["Shared", pytest.param("Own", marks=pytest.mark.matrix)])
def test_evaluations_train_nothing_and_are_greedy(tmp_path: Path, process: str) -> None:
    plain, measured = copy_job(num_ranks=1, steps=3), copy_job(num_ranks=1, steps=3, process=process)
    dataset = DatasetSpec(
        source="builtin://copy", eval=EvalSpec(every_steps=1, source="builtin://copy", max_prompts=4)
    )
    measured = measured.model_copy(update={"dataset": dataset})
    found = {}
    for name, run in (("plain", plain), ("measured", measured)):
        trainer = start_trainer(tmp_path / name, run)
        code, message = trainer.end()
        assert code == 0, f"{message}\n{trainer.log()}"
        found[name] = records(tmp_path / name)
    assert tokens(found["measured"]) == tokens(found["plain"])
    assert all("eval/reward" in record.values for record in found["measured"])


@pytest.mark.parametrize("process", ["Shared", pytest.param("Own", marks=pytest.mark.matrix)])
def test_completions_are_sampled_as_the_job_says(tmp_path: Path, process: str) -> None:
    run = run_config(
        mode="Colocated",
        rewards=[{"name": "shape", "builtin": "regex", "pattern": "^[ab]{2}cd$"}],
        algorithm={
            "steps": 2,
            "promptsPerStep": 4,
            "groupSize": 4,
            "importanceCorrection": {"mode": "none"},
        },
        sampling={
            "maxTokens": 12,
            "regex": "[ab]{2}cd[ab]{20}",
            "stop": ["cd"],
            "topP": 0.9,
            "minP": 0.01,
            "repetitionPenalty": 1.1,
            "applyChatTemplate": True,
            "systemPrompt": "Copy.",
            "chatTemplate": "{% for m in messages %}{{ m.content }}{% endfor %}",
        },
        trainer={"processesPerNode": 1},
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi", "process": process},
    )
    # the process of its container's command, which imports vLLM itself
    trainer = start_trainer(tmp_path, run)
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"
    found = records(tmp_path)
    assert [record.values["reward"] for record in found] == [1.0, 1.0]
    assert [record.values["completions/mean_terminated_length"] for record in found] == [4.0, 4.0]


def test_a_wrong_engine_argument_is_named(tmp_path: Path) -> None:
    run = copy_job(num_ranks=1, steps=5)
    run = run.model_copy(update={"engine": run.engine.model_copy(update={"args": ("--wibble=1",)})})
    code, message = start_trainer(tmp_path, run).end()
    assert (code, message.reason) == (40, "UserError")
    assert "engine.args" in message.message
    assert "--wibble" in message.message
