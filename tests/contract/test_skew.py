"""Two releases, of which the newer has one field more: in the spec, and in the RunConfig."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from grpo_api.changes import frozen_part
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_api.model import NOT_STORED
from grpo_api.resolve import resolve
from grpo_api.schema import property_at, structural_schema
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import AlgorithmSpec, GRPOJobSpec
from grpo_operator.observe.snapshot import job_view
from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise


class NewerAlgorithm(AlgorithmSpec):
    """With one field more."""

    patience: Annotated[int, Field(ge=1, le=100), NOT_STORED] = 5
    """Steps."""


class NewerSpec(GRPOJobSpec):
    """With one field more."""

    algorithm: NewerAlgorithm
    """GRPO and its numbers."""


def stored(**algorithm: Any) -> dict[str, Any]:
    """A job as the API server has it."""
    spec = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10, **algorithm},
    }
    metadata = {"name": "copy", "namespace": "team", "uid": "1", "resourceVersion": "4"}
    return {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "metadata": metadata, "spec": spec}


def test_an_older_operator_reads_every_job_that_does_not_ask_for_the_new_field() -> None:
    assert "default" not in property_at(structural_schema(NewerSpec), "algorithm.patience")
    asked_for, plain = job_view(stored(patience=7)), job_view(stored())
    assert asked_for.spec is None and "spec.algorithm.patience" in asked_for.problem
    assert plain.spec is not None and plain.problem == ""


def test_a_newer_operator_reads_a_job_of_before_the_field_and_takes_it_for_the_same_run() -> None:
    before = GRPOJobSpec.from_object(stored()["spec"])
    newer = NewerSpec.from_object(before.to_object())
    assert newer.algorithm.patience == 5
    assert newer.to_object() == before.to_object()
    assert frozen_part(newer) == frozen_part(before)
    asked_for = NewerSpec.from_object(stored(patience=5)["spec"])
    assert asked_for.to_object()["algorithm"]["patience"] == 5


def trainer_pod(folder: Path, run: dict[str, Any]) -> dict[str, str]:
    """The variables of a trainer pod of mode Colocated with this RunConfig."""
    (folder / "run.json").write_text(json.dumps(run))
    return {
        Env.ROLE: Role.TRAINER,
        Env.RUN_CONFIG: str(folder / "run.json"),
        Env.OUTPUT_DIR: str(folder / "output"),
        Env.CACHE_DIR: str(folder / "cache"),
        Env.VOLUMES_DIR: str(folder / "volumes"),
        Env.ATTEMPT: "1",
        Env.NODE_INDEX: "0",
        Env.MASTER_ADDR: "127.0.0.1",
        Env.HEARTBEAT_FILE: str(folder / "heartbeat"),
    }


def run_of(job: dict[str, Any]) -> dict[str, Any]:
    run: RunConfig = resolve(parse_job(job))
    return run.to_object()


@pytest.mark.parametrize("has_more", [True, False])
def test_a_runtime_refuses_a_run_with_a_field_more_or_less_and_names_it(
    tmp_path: Path, has_more: bool
) -> None:
    run = run_of(stored())
    if has_more:
        run["algorithm"]["patience"] = 5
    else:
        del run["strategy"]
    log = tmp_path / "termination-log"
    options = SupervisorOptions(port=0, termination_log=log)
    assert supervise(trainer_pod(tmp_path, run), options=options) == ExitCode.USER_ERROR == 40
    said = json.loads(log.read_text())["message"]
    assert ("algorithm.patience" if has_more else "strategy") in said
    assert "use an operator and a runtime image of the same release" in said
