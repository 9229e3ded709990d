"""What a trainer of 0.1.0 told and logged, read by today's operator, runtime and local mode."""

import json
import shutil
from pathlib import Path

import pytest

from grpo_api.contract.progress import EngineCounts, Progress, TerminationMessage, TrainerState
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.errors import UserError
from grpo_runtime.local.workspace import State, Workspace
from grpo_runtime.process.failure import read_failure
from grpo_runtime.report.metrics import read_metrics
from grpo_runtime.report.progress import read_progress

from .released import JOB_UID, RUNTIME, lost

PROGRESS = Progress(
    job_uid=JOB_UID,
    attempt=2,
    state=TrainerState.STOPPING,
    step=7,
    total_steps=8,
    heartbeat=6,
    reward=0.895,
    policy_version="2.6",
    tokens_per_second=100.5,
    stale_samples=1,
    checkpoint_step=7,
    resumed_from_step=4,
    engines=EngineCounts(desired=3, known=3, current=2),
)


def test_a_report_of_a_trainer() -> None:
    assert read_progress(RUNTIME) == PROGRESS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "termination-message",
            TerminationMessage(
                reason="Terminated",
                message="asked to stop, and stopped at a step boundary: 7 of 8 steps",
                exit_code=143,
                progress=PROGRESS,
            ),
        ),
        (
            "termination-message-of-a-rank",
            TerminationMessage(
                reason="UserError",
                message="reward copy failed on 96 of 128 completions",
                exit_code=40,
                rank=1,
            ),
        ),
    ],
)
def test_a_termination_message(name: str, expected: TerminationMessage) -> None:
    assert TerminationMessage.model_validate_json((RUNTIME / f"{name}.json").read_text()) == expected


def test_the_failure_that_a_rank_leaves() -> None:
    assert read_failure(RUNTIME, local_rank=1) == TerminationMessage(
        reason="UserError", message="reward copy failed on 96 of 128 completions", exit_code=40
    )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("progress", Progress),
        ("termination-message", TerminationMessage),
        ("termination-message-of-a-rank", TerminationMessage),
        ("error-1", TerminationMessage),
    ],
)
def test_nothing_of_a_document_is_lost(name: str, model: type[ApiModel]) -> None:
    text = (RUNTIME / f"{name}.json").read_text()
    assert lost(json.loads(text), model.model_validate_json(text).to_object()) == {}


def test_metrics_of_two_attempts_the_second_of_which_did_a_step_again() -> None:
    records = read_metrics(RUNTIME / "metrics.jsonl")
    assert [(record.attempt, record.step) for record in records] == [
        *((1, step) for step in range(1, 5)),
        *((2, step) for step in range(5, 8)),
    ]
    expected = [step / 8 + (0.01 if step < 5 else 0.02) for step in range(1, 8)]
    assert [record.values["reward"] for record in records] == pytest.approx(expected)
    assert {"loss", "grad_norm", "learning_rate", "step_time", "num_tokens", "stale_samples"} <= set(
        records[-1].values
    )
    assert records[-1].values["num_tokens"] == 126


def local_job(**algorithm: int) -> dict[str, object]:
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "copy"},
        "spec": {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "builtin://copy"},
            "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
            "algorithm": {"steps": 8, "seed": 7, **algorithm},
            "rollout": {"replicas": 1},
        },
    }


def test_a_local_run_goes_on_as_the_job_and_from_the_attempt_it_was(tmp_path: Path) -> None:
    shutil.copytree(RUNTIME / "local-run", tmp_path / "run")
    workspace = Workspace(tmp_path / "run")
    uid = json.loads(workspace.run_config.read_text())["job"]["uid"]
    with workspace.held():
        run_config = workspace.begin(parse_job(local_job()))
        assert run_config.job.uid == uid
        assert run_config.weight_sync_backend == "gloo"  # as 0.1.0 had it; a new run shares memory
        assert workspace.state() == State(attempt=3, is_done=False)
        with pytest.raises(UserError, match=r"algorithm\.steps was 8 and is now 9"):
            workspace.begin(parse_job(local_job(steps=9)))
