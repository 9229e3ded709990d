"""The commands of the README that a machine without Docker can run, as they are written and in their order.

Only names are replaced (by the namespace and the images of the working tree), and the examples have few
steps. The tests share the job and run in the order they are written in.
"""

import re
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace, copy_job
from grpo_scenarios.reader import Reader
from grpo_scenarios.readme import LOGS_OF_THE_FAILED_POD, README, commands, is_run_in_scenario

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

JOB = "copy"
STEPS = 5
COMMANDS = [command for command in commands(README.read_text()) if is_run_in_scenario(command)]
PRINT_NOTHING = ("kubectl get grpojob copy --output jsonpath='{.status.lastFailure}'",)
"""Commands that print nothing: a job that never failed has no lastFailure."""


@pytest.fixture(scope="module")
def reader(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A reader whose examples have few steps."""
    reader = Reader.in_namespace(namespace, tmp_path_factory.mktemp("reader"))
    for example in (reader.checkout / "examples").glob("*.yaml"):
        text, count = re.subn(
            r"^    steps: \d+$", f"    steps: {STEPS}", example.read_text(), flags=re.MULTILINE
        )
        assert count == 1
        example.write_text(text)
    return reader


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works_as_it_is_written(
    command: str, reader: Reader, namespace: Namespace
) -> None:
    if exported := re.match(r"export (\w+)=", command):
        value = reader.run(f"{command}\nprintenv {exported[1]}")
        assert Path(value.strip().partition(":")[0]).exists()
    elif command.endswith("--watch"):
        assert reader.watch(command, until=JOB)
    elif command.startswith("kubectl scale"):
        # the first step waits for all the engines that the job was created with
        namespace.wait_for_step(JOB, 1)
        reader.run(command)
        assert namespace.job(JOB)["spec"]["rollout"]["replicas"] == int(command.rsplit(maxsplit=1)[-1])
    else:
        assert bool(reader.run(command).strip()) is (command not in PRINT_NOTHING)


def test_the_first_job_is_complete_at_the_end(namespace: Namespace) -> None:
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()


def test_the_readme_shows_the_columns_that_kubectl_prints(reader: Reader) -> None:
    shown = README.read_text().partition("$ kubectl get grpojobs\n")[2].splitlines()
    printed = reader.run("kubectl get grpojobs").splitlines()
    assert shown[0].split() == printed[0].split()
    assert len(shown[1].split()) == len(printed[1].split())


def test_the_log_of_the_pod_that_failed_a_job_is_found(reader: Reader, namespace: Namespace) -> None:
    failing = copy_job("failing", rollout={"replicas": 1})
    failing["spec"]["rewards"] = [{"name": "mine", "function": "nowhere:reward"}]
    namespace.apply(failing)
    assert namespace.wait_for_finish("failing")["phase"] == "Failed"
    assert "needs module nowhere" in reader.run(LOGS_OF_THE_FAILED_POD.replace(JOB, "failing"))
