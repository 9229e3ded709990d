"""What the guard of a rollout pod reads at its start."""

from pathlib import Path

from grpo_api.contract.environment import Env, Role
from grpo_api.contract.run_config import run_config_digest

DATA, ADMIN = "data-secret", "admin-secret"


def guard_environment(folder: Path, *, run_json: str) -> dict[str, str]:
    """The variables of a rollout pod, with their files in `folder`."""
    (folder / "run.json").write_text(run_json)
    (folder / "data-token").write_text(DATA + "\n")
    (folder / "admin-token").write_text(ADMIN + "\n")
    return {
        Env.ROLE: Role.ROLLOUT,
        Env.RUN_CONFIG: str(folder / "run.json"),
        Env.RUN_CONFIG_DIGEST: run_config_digest(run_json.encode()),
        Env.TOKENS_DIR: str(folder),
        Env.CACHE_DIR: str(folder / "cache"),
        Env.VOLUMES_DIR: str(folder / "volumes"),
        Env.INSTANCE: "pod-0",
    }
