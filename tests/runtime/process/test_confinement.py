"""What the workers of a job are kept from; `rollouts.agents.test_source` has an agent that tries."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_api.contract.environment import Env
from grpo_runtime.process.confinement import (
    landlock_version,
    secret_folders,
    what_stays_open,
    without_credentials,
)


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
    assert secret_folders(environment) is None
    found = secret_folders({**environment, Env.STALL_TIMEOUT_SECONDS: "1800"})
    assert {tokens, secrets, hub} <= set(found)


def test_a_pod_without_secrets_has_folders_for_nobody_and_is_a_pod():
    found = secret_folders({Env.STALL_TIMEOUT_SECONDS: "1800"})
    assert found is not None
    # only where the tests themselves run in a pod
    assert all("secrets" in str(folder) for folder in found)


LOOKS_AT_ITS_PARENT = """
import os, pathlib
from grpo_runtime.process.confinement import hide
hide([])
for path in (f"/proc/{os.getppid()}/environ", __import__("sys").executable):
    try:
        print(len(pathlib.Path(path).read_bytes()) > 0)
    except PermissionError:
        print("refused")
"""


def test_where_there_are_no_secrets_files_can_be_read_and_the_environment_of_the_trainer_cannot():
    if landlock_version() < 2:
        pytest.skip("this kernel has no Landlock that serves, so nothing keeps workers from the trainer")
    command = [sys.executable, "-c", LOOKS_AT_ITS_PARENT]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["refused", "True"]


@pytest.mark.parametrize("version", [0, 1])
def test_landlock_that_lets_nobody_move_files_to_other_folders_is_none(version: int):
    sentence = what_stays_open([Path("/etc/tokens")], version=version)
    assert sentence is not None
    assert "read the job's Secrets in /etc/tokens, and look into the trainer" in sentence
    assert "Linux 5.19 or newer" in sentence
    assert "Secrets" not in (what_stays_open([], version=version) or "Secrets")


def test_what_an_older_landlock_leaves_open_is_told_with_the_kernel_that_closes_it():
    sentence = what_stays_open([], version=5)
    assert sentence is not None
    assert "signal the trainer" in sentence and "Linux 6.12 or newer" in sentence
    assert what_stays_open([Path("/etc/tokens")], version=6) is None
