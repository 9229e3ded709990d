"""Every command of the README that a machine without Docker can run, as it is written and in its order.

Only names are put in the place of others: the namespace, the images of the working tree, and a job of few
steps. The tests share the job and run in the order they are written in.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_images.sources import REPOSITORY
from grpo_scenarios.readme import README, commands, is_run_in_scenario
from grpo_scenarios.world import World

pytestmark = pytest.mark.cluster

JOB = "copy"
STEPS = 5
PATIENCE_SECONDS = 900
"""For one command, also one that itself would wait longer."""
COMMANDS = [command for command in commands(README.read_text()) if is_run_in_scenario(command)]
SAY_NOTHING = ("kubectl get grpojob copy --output jsonpath='{.status.lastFailure}'",)
"""A job that never failed has no failure to show."""


@dataclass(frozen=True)
class Reader:
    """Somebody who follows the README: a checkout whose examples are short, and a kubeconfig of his own."""

    checkout: Path
    environment: dict[str, str]
    names: dict[str, str]

    def start(self, command: str) -> subprocess.Popen[str]:
        """Run a command with our names in it."""
        for name, ours in self.names.items():
            command = command.replace(name, ours)
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.checkout, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """What it printed."""
        with self.start(command) as process:
            try:
                told, complaints = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, f"`{command}` failed: {complaints}"
        return told

    def watch(self, command: str, *, until: str) -> str:
        """The first line of an endless command that begins with `until`."""
        with self.start(command) as process:
            assert process.stdout is not None
            try:
                return next(line for line in process.stdout if line.startswith(until))
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def reader(world: World, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("reader")
    checkout = home / "grpo-operator"
    checkout.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != "examples":
            (checkout / entry.name).symlink_to(entry)
    shutil.copytree(REPOSITORY / "examples", checkout / "examples")
    for example in (checkout / "examples").glob("*.yaml"):
        text, count = re.subn(
            r"^    steps: \d+$", f"    steps: {STEPS}", example.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        example.write_text(text)

    kubectl, helm = world.target.kubectl[0], world.target.helm[0]
    kubeconfig = home / "kubeconfig"
    shutil.copy(world.target.kubectl[-1], kubeconfig)
    repository, _, tag = world.target.operator_image.rpartition(":")
    return Reader(
        checkout=checkout,
        environment=os.environ
        | {
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{Path(kubectl).parent}:{Path(helm).parent}:{os.environ['PATH']}",
        },
        names={
            "registry.example.com/my-team/grpo-runtime:0.1.0": world.target.runtime_image,
            "registry.example.com/my-team/grpo-operator": repository,
            "image.tag=0.1.0": f"image.tag={tag}",
            "my-team": world.namespace,
        },
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works_as_it_is_written(command: str, reader: Reader, world: World) -> None:
    if exported := re.match(r"export (\w+)=", command):
        value = reader.run(f"{command}\nprintenv {exported[1]}")
        assert Path(value.strip().partition(":")[0]).exists()
    elif command.endswith("--watch"):
        assert reader.watch(command, until=JOB)
    elif command.startswith("kubectl scale"):
        # the first step waits for all the engines that the job began with
        world.wait_for_step(JOB, 1)
        reader.run(command)
        assert world.job(JOB)["spec"]["rollout"]["replicas"] == int(command.rsplit(maxsplit=1)[-1])
    else:
        assert bool(reader.run(command).strip()) is (command not in SAY_NOTHING)


def test_the_first_job_is_complete_at_the_end(world: World) -> None:
    assert condition(world.job(JOB), "Complete") == "True", world.describe()


def test_the_readme_shows_the_columns_that_kubectl_prints(reader: Reader) -> None:
    shown = README.read_text().partition("$ kubectl get grpojobs\n")[2].splitlines()
    printed = reader.run("kubectl get grpojobs").splitlines()
    assert shown[0].split() == printed[0].split()
    assert len(shown[1].split()) == len(printed[1].split())
