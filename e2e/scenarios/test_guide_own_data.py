"""docs/guides/own-data-and-reward.md, command by command as it is written, from a jsonl file to a model.

Only names are put in the place of others: the namespace and the image of the working tree. The tests share
the job and run in the order they are written in.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_images.sources import REPOSITORY
from grpo_scenarios.readme import commands
from grpo_scenarios.world import World

pytestmark = pytest.mark.cluster

GUIDE = REPOSITORY / "docs" / "guides" / "own-data-and-reward.md"
COMMANDS = commands(GUIDE.read_text())
JOB = "own-data"
PATIENCE_SECONDS = 900
"""For one command; training is the longest."""


@dataclass(frozen=True)
class Reader:
    """Somebody who follows the guide, in a folder that looks like a checkout."""

    checkout: Path
    environment: dict[str, str]
    namespace: str

    def run(self, command: str) -> str:
        """What a command printed, with our namespace in it."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("my-team", self.namespace)],
            cwd=self.checkout, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"`{command}` failed: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(world: World, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("reader")
    checkout = home / "grpo-operator"
    checkout.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != "examples":
            (checkout / entry.name).symlink_to(entry)
    shutil.copytree(REPOSITORY / "examples", checkout / "examples")
    look = checkout / "examples" / "own-data" / "look.yaml"
    ours = look.read_text().replace(
        "registry.example.com/my-team/grpo-runtime:0.1.0", world.target.runtime_image
    )
    assert world.target.runtime_image in ours
    look.write_text(ours)
    kubeconfig = home / "kubeconfig"
    shutil.copy(world.target.kubectl[-1], kubeconfig)
    kubectl = Path(world.target.kubectl[0])
    environment = {"KUBECONFIG": str(kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
    return Reader(checkout=checkout, environment=os.environ | environment, namespace=world.namespace)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_works_as_it_is_written(command: str, reader: Reader) -> None:
    is_silent = " tar " in command
    assert bool(reader.run(command).strip()) is not is_silent


def test_the_job_of_the_guide_learned_from_the_readers_own_function(world: World) -> None:
    assert condition(world.job(JOB), "Complete") == "True", world.describe()
    records = world.metrics(JOB)
    assert records[0].values["own/solved"] < 0.1
    assert records[-1].values["own/solved"] > 0.9


def test_the_model_that_the_reader_took_home_loads_and_says_where_it_came_from(reader: Reader) -> None:
    from grpo_runtime.model.load import load_policy, load_tokenizer

    folder = reader.checkout / "model"
    assert json.loads((folder / "origin.json").read_text())["source"] == "builtin://tiny"
    assert load_policy(folder, dtype="float32").num_parameters() > 0
    assert load_tokenizer(folder)("a=").input_ids
