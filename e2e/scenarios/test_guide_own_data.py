"""The commands of docs/guides/own-data-and-reward.md, as they are written, from a jsonl file to a model.

Only names are replaced: by the namespace and the image of the working tree. The tests share the job and run
in the order they are written in.
"""

import json

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.namespace import Namespace
from grpo_scenarios.reader import RUNTIME_IMAGE, Reader
from grpo_scenarios.readme import GUIDE, commands, is_run_in_scenario

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

COMMANDS = [command for command in commands(GUIDE.read_text()) if is_run_in_scenario(command)]
JOB = "own-data"


@pytest.fixture(scope="module")
def reader(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader.in_namespace(namespace, tmp_path_factory.mktemp("reader"))
    look = reader.checkout / "examples" / "own-data" / "look.yaml"
    ours = look.read_text().replace(RUNTIME_IMAGE, namespace.target.runtime_image)
    assert namespace.target.runtime_image in ours
    look.write_text(ours)
    return reader


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_works_as_it_is_written(command: str, reader: Reader) -> None:
    is_silent = " tar " in command
    assert bool(reader.run(command).strip()) is not is_silent


def test_the_job_of_the_guide_learned_from_the_readers_own_function(namespace: Namespace) -> None:
    assert condition(namespace.job(JOB), "Complete") == "True", namespace.describe()
    records = namespace.metrics(JOB)
    assert records[0].values["own/solved"] < 0.1
    assert records[-1].values["own/solved"] > 0.9


def test_the_model_that_the_reader_copied_loads_and_names_its_origin(reader: Reader) -> None:
    from grpo_runtime.model.load import load_policy, load_tokenizer

    folder = reader.checkout / "model"
    assert json.loads((folder / "origin.json").read_text())["source"] == "builtin://tiny"
    assert load_policy(folder, dtype="float32").num_parameters() > 0
    assert load_tokenizer(folder)("a=").input_ids
