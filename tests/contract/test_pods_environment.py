"""The pods the operator makes are the pods the runtime expects."""

from pathlib import Path

import pytest
import yaml

from grpo_api.contract import endpoints
from grpo_api.contract.environment import ROLLOUT_ENV, TRAINER_ENV, Env
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import parse_run_config
from grpo_api.v1alpha1.job import parse_job
from grpo_operator.children.pod import CONFIG_DIR
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.run import Run
from grpo_operator.children.shared import RUN_CONFIG_KEY, TOKEN_FILES, config_map, service
from grpo_operator.children.trainer import trainer_pod
from grpo_runtime.cli import main as runtime

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def run_of(example: Path) -> Run:
    (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    job = parse_job(found)
    return Run.begin(namespace="default", job=job.metadata.name, uid="uid-1", spec=job.spec, image="image")


def environment(pod: dict) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}


def ours(pod: dict) -> set[str]:
    return {name for name in environment(pod) if name.startswith("GRPO_")}


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.stem)
def run(request: pytest.FixtureRequest) -> Run:
    return run_of(request.param)


def test_a_trainer_pod_is_given_exactly_the_variables_of_the_contract(run: Run):
    assert ours(trainer_pod(run, attempt=1, index=0).manifest) == TRAINER_ENV


def test_a_rollout_pod_is_given_exactly_the_variables_of_the_contract(run: Run):
    assert ours(rollout_pod(run, replica=0, incarnation=0).manifest) == ROLLOUT_ENV


def test_the_run_config_of_every_example_is_read_back_as_it_was_written(run: Run):
    written = config_map(run).manifest["data"][RUN_CONFIG_KEY]
    assert parse_run_config(written) == run.config


def test_the_variables_point_to_what_is_mounted(run: Run):
    for child in (trainer_pod(run, attempt=1, index=0), rollout_pod(run, replica=0, incarnation=0)):
        variables = environment(child.manifest)
        mounts = {m["mountPath"] for m in child.manifest["spec"]["containers"][0]["volumeMounts"]}
        assert variables["GRPO_RUN_CONFIG"] == f"{CONFIG_DIR}/{RUN_CONFIG_KEY}"
        assert {CONFIG_DIR, variables["GRPO_TOKENS_DIR"], variables["GRPO_CACHE_DIR"]} <= mounts
        assert variables.get("GRPO_OUTPUT_DIR", CONFIG_DIR) in mounts


def test_containers_ports_and_probes_are_those_of_the_contract(run: Run):
    trainer = trainer_pod(run, attempt=1, index=0).manifest["spec"]["containers"][0]
    engine = rollout_pod(run, replica=0, incarnation=0).manifest["spec"]["containers"][0]
    assert (trainer["name"], engine["name"]) == (endpoints.TRAINER_CONTAINER, endpoints.ROLLOUT_CONTAINER)
    assert trainer["livenessProbe"]["httpGet"] == {
        "path": endpoints.TRAINER_HEALTH_PATH,
        "port": endpoints.TRAINER_PORT,
    }
    assert engine["livenessProbe"]["httpGet"]["path"] == endpoints.ROLLOUT_LIVE_PATH
    assert engine["readinessProbe"]["httpGet"] == {
        "path": endpoints.ROLLOUT_READY_PATH,
        "port": endpoints.ROLLOUT_PORT,
    }
    assert TOKEN_FILES == (endpoints.DATA_TOKEN_FILE, endpoints.ADMIN_TOKEN_FILE)


def test_the_trainer_command_is_one_the_runtime_understands(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(Env.ROLE, raising=False)
    program, *command = trainer_pod(run, attempt=1, index=0).manifest["spec"]["containers"][0]["command"]
    words = tmp_path / "termination-log"
    # A wrong command line ends with argparse's 2; this one gets as far as the missing environment.
    assert runtime([*command, "--termination-log", str(words)]) == ExitCode.USER_ERROR
    assert Env.ROLE in words.read_text()
    assert program == "grpo-runtime"


def test_the_host_names_in_the_variables_are_those_of_the_services(run: Run):
    trainer = trainer_pod(run, attempt=1, index=0).manifest
    assert environment(trainer)["GRPO_ROLLOUT_HOST"] == service(run, "rollout").name
    for role, pod in (("trainer", trainer), ("rollout", rollout_pod(run, replica=0, incarnation=0).manifest)):
        selector = service(run, role).manifest["spec"]["selector"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["subdomain"] == service(run, role).name
