"""The examples of docs/guides/agents.md about tools, as they are written."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tool_scripts import ScriptedClient, played

from grpo_api.problems import problems
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.rollouts.agents.tools import ToolPlayer

ROOT = Path(__file__).parents[4]
CALCULATOR = ROOT / "examples" / "calculator" / "calculator.py"
PAGE = (ROOT / "docs" / "guides" / "agents.md").read_text()
SECTION = PAGE.partition("## Tools: a class, functions, MCP servers\n")[2].partition("\n## ")[0]
JOB = yaml.safe_load(CALCULATOR.with_name("tools-job.yaml").read_text())


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


def player_in(file: Path, name: str, columns: list[str]) -> ToolPlayer:
    place = {"path": str(file), "function": name, "place": file.name}
    config = {"field": "environment guide", "function": None, "file": place, "columns": columns}
    return ToolPlayer({**config, "servers": [], "has_prompts": True, "system_prompt": None})


def test_the_class_is_that_of_the_example():
    assert f"\n\n\n{blocks('python')[0]}\n\n" in CALCULATOR.read_text()


@pytest.mark.parametrize("number", range(len(blocks("yaml"))))
def test_each_environment_is_one_of_a_job_that_is_accepted(number: int):
    sections: dict[str, Any] = yaml.safe_load(blocks("yaml")[number])
    job = {**JOB, "spec": {**JOB["spec"], **sections}}
    assert problems(job) == []
    assert number or parse_job(job).spec == parse_job(JOB).spec


async def test_the_calculator_computes_and_rewards_the_answer():
    player = player_in(CALCULATOR, "Calculator", ["answer"])
    client = ScriptedClient([("calculate", '{"expression": "3*(1+3)"}')], "It is 12.")
    said = await played(player, client, prompt="3*4", answer="=12")
    assert (said["reward"], client.told) == (1.0, ["12"])
    client = ScriptedClient([("calculate", '{"expression": "three"}')], "It is 12.")
    said = await played(player, client, prompt="3*4", answer="=12")
    assert said == {"reward": 0.0, "state": None, "failures": {"tool": 1}}
    assert client.told == ["Error: ValueError: no arithmetic"]


async def test_a_list_of_functions_is_tools(tmp_path: Path):
    file = tmp_path / "my_tools.py"
    file.write_text(blocks("python")[1])
    client = ScriptedClient([("search", '{"query": "pods"}')], "They are.")
    assert (await played(player_in(file, "TOOLS", []), client))["reward"] is None
    assert client.told == ['["Pods are restarted."]']
