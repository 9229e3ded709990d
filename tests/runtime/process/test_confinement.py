"""What the workers of a job are kept from; `rollouts.agents.test_source` has an agent that tries."""

from pathlib import Path

from grpo_api.contract.environment import Env
from grpo_runtime.process.confinement import secret_folders, without_credentials


def test_a_worker_gets_the_environment_without_the_credentials_that_the_trainer_uses():
    given = {"PATH": "/bin", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "MY_JUDGE_KEY": "mine"}
    assert without_credentials(given) == {"PATH": "/bin", "MY_JUDGE_KEY": "mine"}


def test_the_secrets_of_a_pod_are_hidden_and_outside_of_pods_nothing_is(tmp_path: Path):
    tokens, secrets, hub = (tmp_path / name for name in ("tokens", "volumes/secrets", "hub-token"))
    for folder in (tokens, secrets, hub):
        folder.mkdir(parents=True)
    environment = {
        Env.TOKENS_DIR: str(tokens),
        Env.VOLUMES_DIR: str(tmp_path / "volumes"),
        "HF_TOKEN_PATH": str(hub / "token"),
    }
    assert secret_folders(environment) == []
    found = secret_folders({**environment, Env.STALL_TIMEOUT_SECONDS: "1800"})
    assert {tokens, secrets, hub} <= set(found)
