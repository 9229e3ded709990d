"""The pods that the operator makes have what the runtime expects in them."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from grpo_api.contract import endpoints
from grpo_api.contract.endpoints import HEARTBEAT_SECONDS, HEARTBEAT_STALE_SECONDS
from grpo_api.contract.environment import (
    COLOCATED_ENV,
    LATER_TRAINER_ENV,
    LIMITS_ENV,
    NODE_OF_ENGINE_ENV,
    RAY_ENV,
    ROLLOUT_ENV,
    TRAINER_ENV,
    Env,
    Role,
)
from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import parse_run_config
from grpo_api.contract.volume_paths import local_path
from grpo_api.resolve import volumes_of
from grpo_api.source import Scheme, Source, VolumeKind
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.config import TOKEN_FILES, config_map, pod_templates
from grpo_operator.children.network import service
from grpo_operator.children.pod import CONFIG_DIR, RUN_CONFIG_KEY
from grpo_operator.children.rollout import rollout_pod
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.children.trainer import needs_service, trainer_pod
from grpo_runtime.cli import main as runtime
from grpo_runtime.engines.fleet.settings import fleet_settings
from grpo_runtime.local.ports import LOOPBACK
from grpo_runtime.settings import read_trainer_settings

EVERY_SOURCE = GRPOJobSpec.from_object(
    {
        "model": {"source": "pvc://models/qwen"},
        "dataset": {"source": "configmap://tiny/train.jsonl"},
        "rewards": [{"name": "mine", "configMap": {"name": "code", "key": "reward.py", "function": "score"}}],
        "algorithm": {"steps": 1},
    }
)
"""A colocated job with a source of every kind that is mounted."""
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def run_of(example: Path) -> JobSnapshot:
    (found,) = (item for item in yaml.safe_load_all(example.read_text()) if item["kind"] == "GRPOJob")
    job = parse_job(found)
    return JobSnapshot.take(
        namespace="default", job=job.metadata.name, uid="uid-1", spec=job.spec, image="image"
    )


def pods_of(run: JobSnapshot) -> dict[str, dict]:
    """One pod of each role the run has."""
    made = {"trainer": trainer_pod(run, attempt=1, index=0).body}
    if run.has_rollout:
        made["rollout"] = rollout_pod(run, replica=0, incarnation=0).body
    return made


def environment(pod: dict) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


def ours(pod: dict) -> set[str]:
    return {name for name in environment(pod) if name.startswith("GRPO_")}


RUNS = {path.stem: run_of(path) for path in EXAMPLES} | {
    "every source": JobSnapshot.take(
        namespace="default", job="sources", uid="uid-1", spec=EVERY_SOURCE, image="image"
    )
}
DISAGGREGATED = {name: run for name, run in RUNS.items() if run.has_rollout}


@pytest.fixture(params=RUNS.values(), ids=RUNS)
def run(request: pytest.FixtureRequest) -> JobSnapshot:
    return request.param


@pytest.fixture(params=DISAGGREGATED.values(), ids=DISAGGREGATED)
def disaggregated(request: pytest.FixtureRequest) -> JobSnapshot:
    return request.param


def test_a_trainer_pod_is_given_exactly_the_variables_of_the_contract(run: JobSnapshot):
    colocated = RAY_ENV if run.spec.is_on_ray else COLOCATED_ENV
    expected = LIMITS_ENV | (TRAINER_ENV if run.has_rollout else colocated)
    assert ours(pods_of(run)["trainer"]) == expected


def test_a_trainer_pod_of_a_later_attempt_is_given_what_is_known_by_then(run: JobSnapshot):
    pods = [
        trainer_pod(run, attempt=2, index=0, micro_batch_tokens=known, checkpoint_step=known).body
        for known in (None, 512)
    ]
    assert ours(pods[1]) - ours(pods[0]) == LATER_TRAINER_ENV


def test_a_rollout_pod_is_given_exactly_the_variables_of_the_contract(disaggregated: JobSnapshot):
    has_several = disaggregated.nodes_per_engine > 1
    for node in range(disaggregated.nodes_per_engine):
        pod = rollout_pod(disaggregated, replica=0, incarnation=0, node=node).body
        assert ours(pod) == ROLLOUT_ENV | (NODE_OF_ENGINE_ENV if has_several else set())


def test_the_run_config_of_every_example_is_read_back_as_it_was_written(run: JobSnapshot):
    written = config_map(run).body["data"][RUN_CONFIG_KEY]
    assert parse_run_config(written) == run.config


def test_the_variables_point_to_what_is_mounted(run: JobSnapshot):
    for pod in pods_of(run).values():
        variables = environment(pod)
        mounts = {m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
        assert variables["GRPO_RUN_CONFIG"] == f"{CONFIG_DIR}/{RUN_CONFIG_KEY}"
        assert {CONFIG_DIR, variables["GRPO_CACHE_DIR"]} <= mounts
        assert {variables.get(name, CONFIG_DIR) for name in ("GRPO_TOKENS_DIR", "GRPO_OUTPUT_DIR")} <= mounts
        for volume in volumes_of(run.config):
            source = local_path(
                Source(Scheme.CLAIM if volume.kind is VolumeKind.CLAIM else Scheme.CONFIG_MAP, volume.name),
                volumes_dir=Path(variables["GRPO_VOLUMES_DIR"]),
            )
            assert str(source) in mounts


def test_each_attempt_waits_for_the_number_of_engines_that_was_asked_for_when_it_was_made(
    disaggregated: JobSnapshot, tmp_path: Path
):
    assert disaggregated.spec.rollout is not None
    rollout = disaggregated.spec.rollout.model_copy(update={"replicas": 7})
    config = config_map(disaggregated).body  # immutable: it is from the start
    scaled = replace(
        disaggregated,
        spec=disaggregated.spec.model_copy(update={"rollout": rollout}),
        templates=pod_templates(config),
    )
    (tmp_path / RUN_CONFIG_KEY).write_text(config["data"][RUN_CONFIG_KEY])
    for name in TOKEN_FILES:
        (tmp_path / name).write_text("a-token")
    places = {Env.RUN_CONFIG: str(tmp_path / RUN_CONFIG_KEY), Env.TOKENS_DIR: str(tmp_path)}
    waited_for = []
    for snapshot, attempt in ((disaggregated, 1), (scaled, 2)):
        pod = trainer_pod(snapshot, attempt=attempt, index=0).body
        settings = read_trainer_settings(environment(pod) | places)
        assert settings.run_config.topology.rollout_replicas == fleet_settings(settings).desired
        waited_for.append(fleet_settings(settings).desired)
    assert waited_for == [disaggregated.num_engines, 7]


def test_containers_ports_and_probes_are_those_of_the_contract(disaggregated: JobSnapshot):
    trainer, engine = (pod["spec"]["containers"][0] for pod in pods_of(disaggregated).values())
    assert (trainer["name"], engine["name"]) == (endpoints.TRAINER_CONTAINER, endpoints.ROLLOUT_CONTAINER)
    assert trainer["readinessProbe"]["httpGet"] == {
        "path": endpoints.TRAINER_HEALTH_PATH,
        "port": endpoints.TRAINER_PORT,
    }
    assert engine["livenessProbe"]["httpGet"]["path"] == endpoints.ROLLOUT_LIVE_PATH
    assert engine["readinessProbe"]["httpGet"] == {
        "path": endpoints.ROLLOUT_READY_PATH,
        "port": endpoints.ROLLOUT_PORT,
    }
    assert TOKEN_FILES == (endpoints.DATA_TOKEN_FILE, endpoints.ADMIN_TOKEN_FILE)


def test_no_failing_probe_of_a_trainer_pod_that_ends_it_asks_over_the_network(run: JobSnapshot):
    (trainer,) = pods_of(run)["trainer"]["spec"]["containers"]
    assert "startupProbe" not in trainer
    assert trainer["livenessProbe"].keys() & {"exec", "httpGet", "tcpSocket", "grpc"} == {"exec"}


@pytest.mark.parametrize(
    ("age_seconds", "is_alive"),
    [(None, True), (0, True), (HEARTBEAT_SECONDS + 30, True), (HEARTBEAT_STALE_SECONDS + 5, False)],
)
def test_the_liveness_probe_fails_only_where_the_heartbeat_is_old(
    run: JobSnapshot, tmp_path: Path, age_seconds: float | None, is_alive: bool
):
    (trainer,) = pods_of(run)["trainer"]["spec"]["containers"]
    file = tmp_path / "heartbeat"
    if age_seconds is not None:
        file.touch()
        beat = file.stat().st_mtime - age_seconds
        os.utime(file, (beat, beat))
    done = subprocess.run(
        trainer["livenessProbe"]["exec"]["command"],
        env={"PATH": os.environ["PATH"], Env.HEARTBEAT_FILE: str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0, done.stderr) == (is_alive, "")
    told = re.search(r"the supervisor gave no sign of life for (\d+)", done.stdout)
    assert (told is None or int(told[1]) < HEARTBEAT_STALE_SECONDS) is is_alive


def test_the_heartbeat_is_kept_in_memory_where_no_disk_can_hold_the_supervisor_up(run: JobSnapshot):
    pod = pods_of(run)["trainer"]
    (trainer,) = pod["spec"]["containers"]
    folder = str(Path(environment(pod)[Env.HEARTBEAT_FILE]).parent)
    (name,) = (mount["name"] for mount in trainer["volumeMounts"] if mount["mountPath"] == folder)
    (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == name)
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_runtime_understands_the_command_of_the_trainer_pod(
    run: JobSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(Env.ROLE, raising=False)
    program, *command = trainer_pod(run, attempt=1, index=0).body["spec"]["containers"][0]["command"]
    log = tmp_path / "termination-log"
    # argparse ends with 2 for a wrong command line; this one is read, and the missing environment ends it.
    assert runtime([*command, "--termination-log", str(log)]) == ExitCode.USER_ERROR
    assert Env.ROLE in log.read_text()
    assert program == "grpo-runtime"


def test_the_host_names_in_the_variables_are_those_of_the_services(run: JobSnapshot):
    pods = pods_of(run)
    if run.has_rollout:
        assert environment(pods["trainer"])["GRPO_ROLLOUT_HOST"] == service(run, Role.ROLLOUT).name
    _, _, domain = environment(pods["trainer"])["GRPO_MASTER_ADDR"].partition(".")
    assert (domain == service(run, Role.TRAINER).name) is needs_service(run)
    for role, pod in pods.items():
        selector = service(run, role).body["spec"]["selector"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        if role == Role.ROLLOUT or needs_service(run):
            assert pod["spec"]["subdomain"] == service(run, role).name


def test_where_no_trainer_pod_has_a_name_the_processes_meet_where_a_local_job_does(run: JobSnapshot):
    if not needs_service(run):
        assert environment(pods_of(run)["trainer"])["GRPO_MASTER_ADDR"] == LOOPBACK
