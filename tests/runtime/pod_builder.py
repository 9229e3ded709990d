"""Builds what the operator would give to a pod, in a temporary directory."""

from pathlib import Path
from typing import Any

from grpo_api.contract.endpoints import ADMIN_TOKEN_FILE, DATA_TOKEN_FILE
from grpo_api.contract.environment import COLOCATED_ENV, RAY_ENV, TRAINER_ENV, Env, Role
from grpo_api.contract.run_config import RunConfig, run_config_digest
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.local.ports import free_ports

JOB_UID = "0f9d1c1e-0000-4000-8000-000000000001"


def job_object(**spec: Any) -> dict[str, Any]:
    """A small copy job, with a rollout pod unless `mode` is Colocated; keyword arguments replace sections."""
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "copy", "namespace": "team", "uid": JOB_UID},
        "spec": {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "builtin://copy"},
            "rewards": [{"name": "accuracy", "builtin": "char_accuracy"}],
            "algorithm": {
                "steps": 5,
                "promptsPerStep": 4,
                "groupSize": 4,
                "optimizer": {"learningRate": 1e-3},
            },
            "sampling": {"maxTokens": 6},
            "engine": {"maxModelLen": 64},
            "trainer": {"processesPerNode": 1},
            "checkpoint": {"everySteps": 2},
            **({} if spec.get("mode") == "Colocated" else {"rollout": {"replicas": 1}}),
            **spec,
        },
    }


def run_config(**spec: Any) -> RunConfig:
    """The RunConfig of that job."""
    return resolve(parse_job(job_object(**spec)))


def trainer_environment(
    folder: Path, run: RunConfig, *, attempt: int = 1, node_index: int = 0
) -> dict[str, str]:
    """Write the files of a trainer pod below `folder`, and return the pod's environment.

    The output directory is the same for all attempts, as on a claim; the cache directory is each one's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "run.json"
    config.write_text(run.model_dump_json(by_alias=True))
    for name in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE):
        (folder / name).write_text(f"secret {name}\n")
    environment = {
        Env.ROLE: Role.TRAINER,
        Env.RUN_CONFIG: str(config),
        Env.RUN_CONFIG_DIGEST: run_config_digest(config.read_bytes()),
        Env.TOKENS_DIR: str(folder),
        Env.OUTPUT_DIR: str(folder / "output"),
        Env.CACHE_DIR: str(folder / f"cache-{attempt}-{node_index}"),
        Env.VOLUMES_DIR: str(folder / "volumes"),
        Env.ATTEMPT: str(attempt),
        Env.NODE_INDEX: str(node_index),
        Env.MASTER_ADDR: "127.0.0.1",
        Env.ROLLOUT_HOST: "127.0.0.1",
        Env.ROLLOUT_REPLICAS: str(run.topology.rollout_replicas),
        Env.HEARTBEAT_FILE: str(folder / f"heartbeat-{attempt}-{node_index}"),
    }
    given = COLOCATED_ENV if run.mode == Mode.COLOCATED else TRAINER_ENV
    given = RAY_ENV if run.is_on_ray else given
    return {name: value for name, value in environment.items() if name in given}


def rollout_environment(folder: Path, run: RunConfig, *, instance: str = "engine-0") -> dict[str, str]:
    """The same for a rollout pod."""
    trainer = trainer_environment(folder, run)
    shared = (Env.RUN_CONFIG, Env.RUN_CONFIG_DIGEST, Env.TOKENS_DIR, Env.VOLUMES_DIR)
    return {
        **{name: trainer[name] for name in shared},
        Env.ROLE: Role.ROLLOUT,
        Env.CACHE_DIR: str(folder / f"cache-{instance}"),
        Env.INSTANCE: instance,
    }


def free_port() -> int:
    """A TCP port that nobody listens on, and that no outgoing connection takes."""
    (port,) = free_ports(1)
    return port
