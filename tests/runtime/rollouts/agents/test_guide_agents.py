"""The examples of docs/guides/agents.md about tools, and the one of a judge, as they are written."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp_at_an_address import serving
from tool_scripts import ScriptedClient, played

from grpo_api.problems import problems
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.process.user_code import FunctionFile, load_either
from grpo_runtime.rollouts.agents.coroutine import find_agent
from grpo_runtime.rollouts.agents.environments import agent_options
from grpo_runtime.rollouts.agents.tools import ToolPlayer
from grpo_runtime.rollouts.function.worker import worker_config

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "calculator"
CALCULATOR = EXAMPLE / "calculator.py"
PAGE = (ROOT / "docs" / "guides" / "agents.md").read_text()
TOOLS = "Tools: a class, functions, MCP servers"
JUDGE = "A judge, or a simulated user"
JOB = yaml.safe_load(CALCULATOR.with_name("tools-job.yaml").read_text())


def blocks(language: str, *, section: str = TOOLS) -> list[str]:
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def config_of(file: Path, name: str, columns: list[str]) -> dict[str, Any]:
    place = {"path": str(file), "function": name, "place": file.name}
    return {"field": "environment guide", "function": None, "file": place, "columns": columns}


def player_in(file: Path, name: str, columns: list[str]) -> ToolPlayer:
    config = config_of(file, name, columns)
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


@pytest.mark.parametrize(("judged", "reward"), [("I say 7.", 7.0), ("Very good!", 0.0)])
async def test_a_judge_says_a_number_or_none(judged: str, reward: float, tmp_path: Path):
    file = tmp_path / "judged.py"
    [code] = blocks("python", section=JUDGE)
    file.write_text(code)
    client = ScriptedClient("Four.", judged)
    said = await played(find_agent(config_of(file, "agent", [])), client, prompt="2+2")
    assert said == {"reward": reward, "state": None}
    assert client.messages == [{"role": "user", "content": "A score from 0 to 9 for: Four."}]


SERVER_CODE = blocks("python")[2]
SERVER = {**JOB, "spec": {**JOB["spec"], **yaml.safe_load(blocks("yaml")[2])}}


@asynccontextmanager
async def at_its_place(place: str) -> AsyncIterator[dict[str, str]]:
    """What the guide's server has beside its name."""
    given = SERVER["spec"]["environments"][0]["tools"]["mcpServers"][0]
    if place == "command":
        yield given
    else:
        async with serving(EXAMPLE / "mcp_server.py") as (_, url):
            yield {"name": given["name"], "url": url}


@pytest.mark.parametrize("place", ["command", pytest.param("url", marks=pytest.mark.matrix)])
async def test_the_calculator_is_a_server_too_and_a_function_rewards_what_it_said(
    place: str, calculator_volumes: Path, monkeypatch: pytest.MonkeyPatch
):
    assert SERVER_CODE in (EXAMPLE / "mcp_server.py").read_text()
    async with at_its_place(place) as server:
        environment = {**SERVER["spec"]["environments"][0], "tools": {"mcpServers": [server]}}
        run = resolve(parse_job({**SERVER, "spec": {**SERVER["spec"], "environments": [environment]}}))
        assert run.environments is not None
        code = agent_options(
            run.environments[0], run, volumes_dir=calculator_volumes, columns=["answer"]
        ).code
        for name, value in code.environment.items():
            monkeypatch.setenv(name, value)
        player = ToolPlayer(json.loads(worker_config(None, None, field="environment guide", **code.more)))
        client = ScriptedClient([("calculate", '{"expression": "3*(1+3)"}')], "It is 12.")
        try:
            said = await played(player, client, prompt="3*4", answer="=12")
        finally:
            await player.close()
    assert (said["reward"], client.told) == (None, ["12"])
    [reward] = run.rewards
    assert reward.config_map is not None
    file = FunctionFile.of_spec(reward.config_map, volumes_dir=calculator_volumes)
    rewarded = load_either(None, asdict(file), field="rewards")
    chats = [
        [message for message in client.messages if isinstance(message, dict)],
        [{"role": "user", "content": "3*4"}],
    ]
    trajectories = [{"chats": [chat]} for chat in chats]
    assert rewarded(trajectories=trajectories, answer=["=12", "=12"]) == [1.0, 0.0]
