"""docs/guides/own-data-and-reward.md, command by command as it is written, from a jsonl file to a model.

Only names are put in the place of others: the namespace and the image of the working tree. The tests share
the job and run in the order they are written in.
"""

import json

import pytest

from grpo_demo.follow import condition
from grpo_images.sources import REPOSITORY
from grpo_scenarios.reader import RUNTIME_IMAGE, Reader
from grpo_scenarios.readme import commands
from grpo_scenarios.world import World

pytestmark = pytest.mark.cluster

GUIDE = REPOSITORY / "docs" / "guides" / "own-data-and-reward.md"
COMMANDS = commands(GUIDE.read_text())
JOB = "own-data"


@pytest.fixture(scope="module")
def reader(world: World, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader.of_world(world, tmp_path_factory.mktemp("reader"))
    look = reader.checkout / "examples" / "own-data" / "look.yaml"
    ours = look.read_text().replace(RUNTIME_IMAGE, world.target.runtime_image)
    assert world.target.runtime_image in ours
    look.write_text(ours)
    return reader


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
