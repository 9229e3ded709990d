"""Completions of several turns on engines of a fleet: the example with a calculator, Disaggregated."""

import re
from pathlib import Path

import pytest
import yaml
from local_job import local_engines, start_trainer
from pod_builder import run_config

from grpo_runtime.report.metrics_file import read_metrics
from grpo_runtime.report.samples import read_groups

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

EXAMPLE = Path(__file__).parents[3] / "examples" / "calculator"
STEPS = 4


def test_turns_of_a_completion_go_to_the_engines_of_a_fleet_and_the_tools_words_are_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    sections = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["spec"]
    sections["algorithm"]["steps"] = STEPS
    sections["dataset"]["source"] = f"file://{EXAMPLE}/train.jsonl"
    sections["sampling"]["rolloutFunction"] = {"function": "calculator:with_calculator", "maxTurns": 3}
    sections |= {
        "mode": "Disaggregated",
        "trainer": {"processesPerNode": 1},
        "rollout": {"replicas": 2},
        "report": {"samplesEverySteps": 1},
    }
    run = run_config(**sections)
    with local_engines(tmp_path, run, count=2) as engines:
        trainer = start_trainer(tmp_path, run, engines)
        code, message = trainer.end()
    assert code == 0, (message, trainer.log())
    steps = [record.values for record in read_metrics(tmp_path / "output" / "metrics.jsonl")]
    assert [values["sync/engines"] for values in steps] == [2.0] * STEPS
    said = [
        sample.completion
        for step in range(1, STEPS + 1)
        for group in read_groups(tmp_path / "output", step=step)
        for sample in group
    ]
    assert len(said) == STEPS * 16 * 8
    # what the calculator said, or a question mark for what is no expression
    assert any(re.search(r"=(-?[0-9]|\?)", text) for text in said)
    # of what nobody sampled the logprob is 0, which would be nats away from the policy's
    name = "sampling/sampling_logp_difference/max"
    computed = [values[name] for values in steps if values["batch/computed_share"] > 0]
    assert computed and max(computed) < 1e-4
