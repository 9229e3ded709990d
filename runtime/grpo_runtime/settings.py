"""The settings of a pod: a few environment variables, the RunConfig file that they name, and two tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.endpoints import ADMIN_TOKEN_FILE, DATA_TOKEN_FILE
from grpo_api.contract.environment import Env, Role
from grpo_api.contract.run_config import RunConfig, parse_run_config, run_config_digest
from grpo_api.contract.versions import SchemaSkewError
from grpo_api.problems import problems_of
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.errors import RunConfigChangedError, UserError


@dataclass(frozen=True)
class Tokens:
    """Secrets that the roles of one job share: `data` may sample, `admin` may change weights."""

    data: str = field(repr=False)
    admin: str = field(repr=False)


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a trainer pod."""

    run_config: RunConfig
    """The RunConfig, with the number of rollout engines that this attempt waits for, and its budget of
    tokens."""
    has_lowered_budget: bool
    """Whether an attempt before ran out of GPU memory, so that this one computes fewer tokens at a time."""
    tokens: Tokens | None
    """None where nothing has a network address that they guard: in mode Colocated without Ray."""
    output_dir: Path
    cache_dir: Path
    volumes_dir: Path
    attempt: int
    node_index: int
    master_addr: str
    rollout_host: str | None
    """None in mode Colocated."""
    heartbeat_file: Path
    stall_timeout_seconds: int | None = None
    """`stallTimeoutSeconds` of the spec, for an attempt whose progress nobody asks for; None where another
    process limits it."""
    startup_deadline_seconds: int | None = None
    checkpoint_step: int | None = None
    """Step of the highest checkpoint that attempts before have saved; None where none has."""

    @property
    def run_dir(self) -> Path:
        """Directory of the files by which the processes of this pod exchange reports in this attempt."""
        return self.cache_dir / "run"


@dataclass(frozen=True)
class EngineNode:
    """Which of the pods of an engine a pod is. They meet at `master_addr`, the host name of the first."""

    index: int
    num_nodes: int
    master_addr: str

    @property
    def is_leader(self) -> bool:
        """Whether it has the server and the scheduler, and not only workers."""
        return self.index == 0


@dataclass(frozen=True)
class RolloutSettings:
    """The settings of a rollout pod."""

    run_config: RunConfig
    tokens: Tokens
    cache_dir: Path
    volumes_dir: Path
    instance: str
    node: EngineNode | None
    """None where the pod is the whole engine."""


def read_trainer_settings(environment: Mapping[str, str]) -> TrainerSettings:
    """Read the settings of a trainer pod.

    Raises UserError naming the variable or file that is missing or wrong, and when the RunConfig was
    written by an operator of another release.
    """
    _require_role(environment, Role.TRAINER)
    run_config = _read_run_config(environment)
    node_index = _number(environment, Env.NODE_INDEX, lowest=0)
    if node_index >= run_config.topology.num_nodes:
        raise UserError(
            f"{Env.NODE_INDEX} ({node_index}) must be below the number of trainer pods "
            f"({run_config.topology.num_nodes})"
        )
    has_rollout_pods = run_config.mode is not Mode.COLOCATED
    has_lowered_budget = Env.MICRO_BATCH_TOKENS in environment
    if has_lowered_budget:
        budget = _number(environment, Env.MICRO_BATCH_TOKENS, lowest=2)
        run_config = run_config.model_copy(update={"micro_batch_tokens": budget})
    return TrainerSettings(
        run_config=_scaled(run_config, environment) if has_rollout_pods else run_config,
        has_lowered_budget=has_lowered_budget,
        tokens=_read_tokens(_path(environment, Env.TOKENS_DIR)) if run_config.needs_tokens else None,
        output_dir=_path(environment, Env.OUTPUT_DIR),
        cache_dir=_path(environment, Env.CACHE_DIR),
        volumes_dir=_path(environment, Env.VOLUMES_DIR),
        attempt=_number(environment, Env.ATTEMPT, lowest=1),
        node_index=node_index,
        master_addr=_text(environment, Env.MASTER_ADDR),
        rollout_host=_text(environment, Env.ROLLOUT_HOST) if has_rollout_pods else None,
        heartbeat_file=_path(environment, Env.HEARTBEAT_FILE),
        stall_timeout_seconds=_optional_number(environment, Env.STALL_TIMEOUT_SECONDS, lowest=1),
        startup_deadline_seconds=_optional_number(environment, Env.STARTUP_DEADLINE_SECONDS, lowest=1),
        checkpoint_step=_optional_number(environment, Env.CHECKPOINT_STEP, lowest=0),
    )


def read_rollout_settings(environment: Mapping[str, str]) -> RolloutSettings:
    """Read the settings of a rollout pod; raises UserError like `read_trainer_settings`."""
    _require_role(environment, Role.ROLLOUT)
    return RolloutSettings(
        run_config=_read_run_config(environment),
        tokens=_read_tokens(_path(environment, Env.TOKENS_DIR)),
        cache_dir=_path(environment, Env.CACHE_DIR),
        volumes_dir=_path(environment, Env.VOLUMES_DIR),
        instance=_text(environment, Env.INSTANCE),
        node=_engine_node(environment),
    )


def _engine_node(environment: Mapping[str, str]) -> EngineNode | None:
    if Env.NODES_PER_REPLICA not in environment:
        return None
    node = EngineNode(
        index=_number(environment, Env.NODE_INDEX, lowest=0),
        num_nodes=_number(environment, Env.NODES_PER_REPLICA, lowest=2),
        master_addr=_text(environment, Env.MASTER_ADDR),
    )
    if node.index >= node.num_nodes:
        raise UserError(
            f"{Env.NODE_INDEX} ({node.index}) must be below {Env.NODES_PER_REPLICA} ({node.num_nodes})"
        )
    return node


def _scaled(run_config: RunConfig, environment: Mapping[str, str]) -> RunConfig:
    """The RunConfig with the number of engines of this attempt; the file has that of the job's start."""
    replicas = _number(environment, Env.ROLLOUT_REPLICAS, lowest=1)
    topology = run_config.topology.model_copy(update={"rollout_replicas": replicas})
    return run_config.model_copy(update={"topology": topology})


def _text(environment: Mapping[str, str], name: Env) -> str:
    value = environment.get(name, "")
    if not value:
        raise UserError(f"the environment variable {name} is not set: the operator gives it to every pod")
    return value


def _path(environment: Mapping[str, str], name: Env) -> Path:
    return Path(_text(environment, name))


def _optional_number(environment: Mapping[str, str], name: Env, *, lowest: int) -> int | None:
    return _number(environment, name, lowest=lowest) if name in environment else None


def _number(environment: Mapping[str, str], name: Env, *, lowest: int) -> int:
    text = _text(environment, name)
    if not text.isdecimal() or int(text) < lowest:
        raise UserError(f"{name} ({text}) must be a whole number of at least {lowest}")
    return int(text)


def _require_role(environment: Mapping[str, str], role: Role) -> None:
    found = _text(environment, Env.ROLE)
    if found != role:
        raise UserError(f"{Env.ROLE} is {found} but this process is a {role}: start the other subcommand")


def _read_run_config(environment: Mapping[str, str]) -> RunConfig:
    path, wanted = _path(environment, Env.RUN_CONFIG), _text(environment, Env.RUN_CONFIG_DIGEST)
    try:
        content = path.read_bytes()
        # the operator may have checked another file than the kubelet has mounted since
        if run_config_digest(content) != wanted:
            raise RunConfigChangedError(
                f"{path} is not the RunConfig that the operator made for this pod: somebody has deleted its "
                "ConfigMap and made another. Delete that one, then this pod: the operator makes both again"
            )
        return parse_run_config(content.decode())
    except SchemaSkewError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{Env.RUN_CONFIG} ({path}) cannot be read: {error.strerror}") from error
    except ValidationError as error:
        named = "; ".join(str(problem) for problem in problems_of(error))
        raise UserError(
            f"{Env.RUN_CONFIG} ({path}) is not the RunConfig of this release: use an operator and a runtime "
            f"image of the same release: {named}"
        ) from error
    except (json.JSONDecodeError, AttributeError) as error:
        raise UserError(f"{Env.RUN_CONFIG} ({path}) is not a valid RunConfig: {error}") from error


def _read_tokens(folder: Path) -> Tokens:
    return Tokens(data=_read_token(folder / DATA_TOKEN_FILE), admin=_read_token(folder / ADMIN_TOKEN_FILE))


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UserError(f"{Env.TOKENS_DIR}: {path} cannot be read: {error.strerror}") from error
    if not token:
        raise UserError(f"{Env.TOKENS_DIR}: {path} is empty")
    return token
