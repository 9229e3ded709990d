"""The runtime reads every variable that the operator gives to a pod, and needs no other."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

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
from grpo_api.contract.run_config import run_config_digest
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import PauseMode
from grpo_runtime.engines.fleet.settings import Pause, fleet_settings
from grpo_runtime.errors import RunConfigChangedError, UserError
from grpo_runtime.settings import EngineNode, read_rollout_settings, read_trainer_settings
from grpo_runtime.supervisor.supervisor import SupervisorOptions, supervise


class FakeEnvironment(Mapping[str, str]):
    """An environment that remembers which variables were read."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def run_config_json(**spec: Any) -> str:
    """The file that the operator would write; keyword arguments are added to the spec."""
    job = parse_job(
        {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "copy", "uid": "uid-1"},
            "spec": {
                "model": {"source": "builtin://tiny"},
                "dataset": {"source": "builtin://copy"},
                "rewards": [{"name": "accuracy", "builtin": "char_accuracy"}],
                "algorithm": {"steps": 5},
                **spec,
            },
        }
    )
    return resolve(job).model_dump_json(by_alias=True)


def written_to(path: Path, run_json: str) -> dict[str, str]:
    """The variables that say where a RunConfig is, and which."""
    path.write_text(run_json)
    return {Env.RUN_CONFIG: str(path), Env.RUN_CONFIG_DIGEST: run_config_digest(run_json.encode())}


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "data-token").write_text("d")
    (tmp_path / "admin-token").write_text("a")
    return {
        **written_to(tmp_path / "run.json", run_config_json(rollout={"lostTimeoutSeconds": 77})),
        Env.TOKENS_DIR: str(tmp_path),
        Env.OUTPUT_DIR: str(tmp_path / "output"),
        Env.CACHE_DIR: str(tmp_path / "cache"),
        Env.VOLUMES_DIR: str(tmp_path / "volumes"),
        Env.ATTEMPT: "2",
        Env.NODE_INDEX: "0",
        Env.MASTER_ADDR: "trainer-0",
        Env.ROLLOUT_HOST: "rollout",
        Env.ROLLOUT_REPLICAS: "3",
        Env.INSTANCE: "engine-0",
        Env.HEARTBEAT_FILE: str(tmp_path / "heartbeat"),
    }


def test_a_trainer_reads_exactly_the_variables_of_a_trainer_pod(
    values: dict[str, str], tmp_path: Path
) -> None:
    environment = FakeEnvironment({**values, Env.ROLE: Role.TRAINER})
    settings = read_trainer_settings(environment)
    assert environment.read == TRAINER_ENV | LIMITS_ENV | LATER_TRAINER_ENV
    assert (settings.attempt, settings.run_config.algorithm.steps) == (2, 5)
    assert settings.volumes_dir == tmp_path / "volumes"


def test_a_trainer_that_holds_its_engines_needs_neither_tokens_nor_a_rollout_host(
    values: dict[str, str], tmp_path: Path
) -> None:
    written = written_to(tmp_path / "run.json", run_config_json(mode="Colocated"))
    values = {**values, **written, Env.ROLE: Role.TRAINER}
    environment = FakeEnvironment({name: values[name] for name in COLOCATED_ENV})
    settings = read_trainer_settings(environment)
    assert environment.read == COLOCATED_ENV | LIMITS_ENV | LATER_TRAINER_ENV
    assert (settings.tokens, settings.rollout_host) == (None, None)


def test_a_trainer_whose_engines_are_rays_actors_needs_tokens(values: dict[str, str], tmp_path: Path) -> None:
    on_ray = run_config_json(mode="Colocated", colocated={"executor": "Ray"})
    values = {**values, **written_to(tmp_path / "run.json", on_ray), Env.ROLE: Role.TRAINER}
    environment = FakeEnvironment({name: values[name] for name in RAY_ENV})
    settings = read_trainer_settings(environment)
    assert environment.read == RAY_ENV | LIMITS_ENV | LATER_TRAINER_ENV
    assert settings.tokens is not None and settings.rollout_host is None


def test_a_trainer_whose_gpu_was_out_of_memory_is_told_its_budget(values: dict[str, str]) -> None:
    values = {**values, Env.ROLE: Role.TRAINER}
    before, after = (
        read_trainer_settings(given) for given in (values, {**values, Env.MICRO_BATCH_TOKENS: "512"})
    )
    assert (before.run_config.micro_batch_tokens, before.has_lowered_budget) == (1024, False)
    assert (after.run_config.micro_batch_tokens, after.has_lowered_budget) == (512, True)
    with pytest.raises(UserError, match=Env.MICRO_BATCH_TOKENS):
        read_trainer_settings({**values, Env.MICRO_BATCH_TOKENS: "1"})


def test_a_trainer_is_told_the_highest_checkpoint_of_its_job(values: dict[str, str]) -> None:
    values = {**values, Env.ROLE: Role.TRAINER}
    given = (values, {**values, Env.CHECKPOINT_STEP: "720"})
    assert [read_trainer_settings(each).checkpoint_step for each in given] == [None, 720]


def test_a_trainer_in_a_pod_is_told_its_limits(values: dict[str, str]) -> None:
    values = {**values, Env.ROLE: Role.TRAINER}
    limits = {Env.STALL_TIMEOUT_SECONDS: "90", Env.STARTUP_DEADLINE_SECONDS: "600"}
    found = [read_trainer_settings(each) for each in (values, {**values, **limits})]
    told = [(each.stall_timeout_seconds, each.startup_deadline_seconds) for each in found]
    assert told == [(None, None), (90, 600)]


def test_a_fleet_waits_for_its_engines_as_long_as_the_spec_says(values: dict[str, str]) -> None:
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert settings.empty_wait_seconds == 77


def test_a_fleet_gives_weights_to_every_worker_of_an_engine(values: dict[str, str], tmp_path: Path) -> None:
    values |= written_to(
        tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, engine={"tensorParallelSize": 2})
    )
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert settings.workers_per_engine == 2


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, 64),
        ({"engine": {"maxNumSeqs": 9}}, 9),
        ({"engine": {"maxNumSeqs": 9}, "async": {"maxStaleness": 1}}, 36),
        # it finishes all of them before it gets weights
        ({"engine": {"maxNumSeqs": 9}, "async": {"maxStaleness": 1, "pauseMode": "Wait"}}, 9),
    ],
)
def test_a_fleet_gives_an_engine_as_many_completions_at_a_time_as_the_spec_says(
    values: dict[str, str], tmp_path: Path, spec: dict[str, object], expected: int
) -> None:
    values |= written_to(tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, **spec))
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert settings.max_in_flight == expected


@pytest.mark.parametrize(("node_index", "is_there"), [("1", True), ("2", False), ("-1", False)])
def test_a_trainer_pod_is_one_of_those_that_the_spec_names(
    values: dict[str, str], tmp_path: Path, node_index: str, is_there: bool
) -> None:
    values |= written_to(
        tmp_path / "run.json", run_config_json(trainer={"numNodes": 2, "processesPerNode": 1})
    )
    environment = {**values, Env.ROLE: Role.TRAINER, Env.NODE_INDEX: node_index}
    if is_there:
        assert read_trainer_settings(environment).node_index == 1
    else:
        with pytest.raises(UserError, match=Env.NODE_INDEX):
            read_trainer_settings(environment)


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_number_of_engines_that_cannot_be_waited_for_is_named(values: dict[str, str], value: str) -> None:
    with pytest.raises(UserError, match=Env.ROLLOUT_REPLICAS):
        read_trainer_settings({**values, Env.ROLE: Role.TRAINER, Env.ROLLOUT_REPLICAS: value})


def test_a_trainer_that_holds_its_engines_has_no_fleet(values: dict[str, str], tmp_path: Path) -> None:
    values |= written_to(tmp_path / "run.json", run_config_json(mode="Colocated"))
    settings = read_trainer_settings({**values, Env.ROLE: Role.TRAINER})
    with pytest.raises(UserError, match="mode is Colocated: there are no rollout pods"):
        fleet_settings(settings)


def test_a_rollout_engine_reads_exactly_the_variables_of_a_rollout_pod(
    values: dict[str, str], tmp_path: Path
) -> None:
    environment = FakeEnvironment(
        {name: values[name] for name in ROLLOUT_ENV - {Env.ROLE}} | {Env.ROLE: Role.ROLLOUT}
    )
    settings = read_rollout_settings(environment)
    assert environment.read == ROLLOUT_ENV | {Env.NODES_PER_REPLICA}
    assert settings.node is None
    assert (settings.tokens.data, settings.tokens.admin) == ("d", "a")
    assert settings.volumes_dir == tmp_path / "volumes"


def test_a_pod_that_is_a_part_of_an_engine_reads_which_part(values: dict[str, str]) -> None:
    own = {
        Env.NODES_PER_REPLICA: "2",
        Env.NODE_INDEX: "1",
        Env.MASTER_ADDR: "rollout-0",
        Env.ROLE: Role.ROLLOUT,
    }
    names = (ROLLOUT_ENV | NODE_OF_ENGINE_ENV) - own.keys()
    environment = FakeEnvironment({name: values[name] for name in names} | own)
    node = read_rollout_settings(environment).node
    assert environment.read == ROLLOUT_ENV | NODE_OF_ENGINE_ENV
    assert node == EngineNode(index=1, num_nodes=2, master_addr="rollout-0")
    assert not node.is_leader
    for name, value in ((Env.NODE_INDEX, "2"), (Env.NODES_PER_REPLICA, "1"), (Env.MASTER_ADDR, "")):
        with pytest.raises(UserError, match=name):
            read_rollout_settings({**values, **own, name: value})


def test_a_fleet_counts_the_workers_of_all_stages(values: dict[str, str], tmp_path: Path) -> None:
    engine = {"tensorParallelSize": 2, "pipelineParallelSize": 3}
    values |= written_to(tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, engine=engine))
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert (settings.workers_per_engine, settings.cores_per_engine) == (6, 1)


def test_a_fleet_counts_the_workers_of_all_cores(values: dict[str, str], tmp_path: Path) -> None:
    engine = {"tensorParallelSize": 2, "dataParallelSize": 4, "expertParallel": True}
    values |= written_to(tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, engine=engine))
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert (settings.workers_per_engine, settings.cores_per_engine) == (8, 4)


@pytest.mark.parametrize(("spec", "expected"), [({}, False), ({"async": {"maxStaleness": 1}}, True)])
def test_only_in_asynchronous_training_weights_change_while_a_fleet_samples(
    values: dict[str, str], tmp_path: Path, spec: dict[str, object], expected: bool
) -> None:
    values |= written_to(tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, **spec))
    settings = fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))
    assert settings.is_asynchronous is expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, Pause(PauseMode.KEEP)),
        ({"async": {"maxStaleness": 1}}, Pause(PauseMode.KEEP)),
        ({"async": {"maxStaleness": 1, "kvCache": "Keep"}}, Pause(PauseMode.KEEP, keeps_cache=True)),
        ({"async": {"maxStaleness": 1, "pauseMode": "Wait"}}, Pause(PauseMode.WAIT)),
        ({"async": {"maxStaleness": 1, "pauseMode": "Abort"}}, Pause(PauseMode.ABORT)),
    ],
)
def test_a_fleet_does_with_what_engines_are_sampling_what_the_spec_says(
    values: dict[str, str], tmp_path: Path, spec: dict[str, object], expected: Pause
) -> None:
    values |= written_to(tmp_path / "run.json", run_config_json(rollout={"replicas": 1}, **spec))
    assert fleet_settings(read_trainer_settings({**values, Env.ROLE: Role.TRAINER})).pause == expected


def test_the_repr_of_settings_shows_no_token(values: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("a-secret-token")
    assert "a-secret-token" not in repr(read_trainer_settings({**values, Env.ROLE: Role.TRAINER}))


@pytest.mark.parametrize("name", sorted(TRAINER_ENV))
def test_a_missing_variable_is_named(values: dict[str, str], name: str) -> None:
    environment = {**values, Env.ROLE: Role.TRAINER}
    del environment[name]
    with pytest.raises(UserError, match=name):
        read_trainer_settings(environment)


def test_a_trainer_does_not_begin_with_another_run_config_than_the_operator_made(
    values: dict[str, str], tmp_path: Path
) -> None:
    """As when the ConfigMap is made anew by somebody after the operator has looked at it."""
    (tmp_path / "run.json").write_text(run_config_json(algorithm={"steps": 6}))
    log = tmp_path / "termination-log"
    code = supervise(
        {**values, Env.ROLE: Role.TRAINER}, options=SupervisorOptions(port=0, termination_log=log)
    )
    said = json.loads(log.read_text())
    assert (code, said["reason"]) == (ExitCode.TRANSIENT, "RevisionChanged")
    assert "is not the RunConfig that the operator made for this pod" in said["message"]
    with pytest.raises(RunConfigChangedError):
        read_rollout_settings({**values, Env.ROLE: Role.ROLLOUT})


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        pytest.param(lambda run: run.update(schemaVersion=99), "99", id="another version"),
        pytest.param(
            lambda run: run["algorithm"].update(patience=5), "algorithm.patience", id="a field more"
        ),
        pytest.param(lambda run: run.pop("strategy"), "strategy", id="a field less"),
    ],
)
def test_a_run_config_of_another_release_ends_the_trainer_with_40_and_says_so(
    values: dict[str, str], tmp_path: Path, alter: Callable[[dict[str, Any]], object], named: str
) -> None:
    config = tmp_path / "run.json"
    run = json.loads(config.read_text())
    alter(run)
    values |= written_to(config, json.dumps(run))
    log = tmp_path / "termination-log"
    options = SupervisorOptions(port=0, termination_log=log)
    code = supervise({**values, Env.ROLE: Role.TRAINER}, options=options)
    assert code == ExitCode.USER_ERROR == 40
    said = json.loads(log.read_text())["message"]
    assert named in said
    assert "use an operator and a runtime image of the same release" in said


def test_a_trainer_does_not_start_in_a_rollout_pod(values: dict[str, str]) -> None:
    with pytest.raises(UserError, match="this process is a trainer"):
        read_trainer_settings({**values, Env.ROLE: Role.ROLLOUT})
