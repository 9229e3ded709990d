"""The environment of each local process: the variables that its pod would have."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_api.contract.environment import Env, Role
from grpo_api.contract.run_config import RunConfig, run_config_digest
from grpo_api.judge.attempts import lowered_budget
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.local.ports import LOOPBACK
from grpo_runtime.local.workspace import Workspace
from grpo_runtime.supervisor.fork_server import RENDEZVOUS_VARIABLES


def trainer_environment(
    run_config: RunConfig,
    workspace: Workspace,
    *,
    attempt: int,
    index: int,
    cache: Path,
    rollout_ports: Sequence[int],
    has_lowered_budget: bool = False,
) -> dict[str, str]:
    """The variables of trainer `index`; only trainer 0 writes into the output directory, as in a cluster.
    `has_lowered_budget` says that an attempt before ran out of GPU memory."""
    environment = _shared(workspace, Role.TRAINER, cache=cache) | {
        Env.OUTPUT_DIR: str(workspace.output if index == 0 else cache / "output"),
        Env.ATTEMPT: str(attempt),
        Env.NODE_INDEX: str(index),
        Env.MASTER_ADDR: LOOPBACK,
        Env.HEARTBEAT_FILE: str(cache / "heartbeat"),
    }
    if run_config.needs_tokens:
        environment[Env.TOKENS_DIR] = str(workspace.tokens)
    if run_config.mode is Mode.DISAGGREGATED:
        environment[Env.ROLLOUT_HOST] = ",".join(f"{LOOPBACK}:{port}" for port in rollout_ports)
        environment[Env.ROLLOUT_REPLICAS] = str(len(rollout_ports))
    if has_lowered_budget:
        environment[Env.MICRO_BATCH_TOKENS] = str(lowered_budget(run_config.micro_batch_tokens))
    return environment


def rollout_environment(workspace: Workspace, *, name: str, cache: Path) -> dict[str, str]:
    """The variables of the engine `name`."""
    return _shared(workspace, Role.ROLLOUT, cache=cache) | {
        Env.TOKENS_DIR: str(workspace.tokens),
        Env.INSTANCE: name,
    }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The shell's environment without the variables of a pod or of other ranks."""
    foreign = RENDEZVOUS_VARIABLES | set(Env)
    return {name: value for name, value in environment.items() if name not in foreign}


def _shared(workspace: Workspace, role: Role, *, cache: Path) -> dict[str, str]:
    return {
        Env.ROLE: role.value,
        Env.RUN_CONFIG: str(workspace.run_config),
        Env.RUN_CONFIG_DIGEST: run_config_digest(workspace.run_config.read_bytes()),
        Env.CACHE_DIR: str(cache),
        Env.VOLUMES_DIR: str(workspace.volumes),
    }
