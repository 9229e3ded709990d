"""Every command of the README that a machine without Docker can run, as it is written and in its order.

Only names are put in the place of others: the namespace, the images of the working tree, and a job of few
steps. The tests share the job and run in the order they are written in.
"""

import re
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.reader import Reader
from grpo_scenarios.readme import README, commands, is_run_in_scenario
from grpo_scenarios.world import World

pytestmark = pytest.mark.cluster

JOB = "copy"
STEPS = 5
COMMANDS = [command for command in commands(README.read_text()) if is_run_in_scenario(command)]
SAY_NOTHING = ("kubectl get grpojob copy --output jsonpath='{.status.lastFailure}'",)
"""A job that never failed has no failure to show."""


@pytest.fixture(scope="module")
def reader(world: World, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """One whose examples are short."""
    reader = Reader.of_world(world, tmp_path_factory.mktemp("reader"))
    for example in (reader.checkout / "examples").glob("*.yaml"):
        text, count = re.subn(
            r"^    steps: \d+$", f"    steps: {STEPS}", example.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        example.write_text(text)
    return reader


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
