"""Code that an agent may run for the policy is found in its source."""

import ast
from pathlib import Path

import pytest

from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.rollouts.agents.code_check import calls_of, warnings_of
from grpo_runtime.rollouts.agents.kinds import AgentCode


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("exec(said)", [("exec", 1)]),
        ("import subprocess as sp\nsp.run(said)", [("subprocess.run", 2)]),
        ("from subprocess import run\nrun(said)", [("subprocess.run", 2)]),
        ("async def agent():\n  import os\n  os.system(said)", [("os.system", 3)]),
        ("from smolagents import CodeAgent\nCodeAgent(tools=[])", [("smolagents.CodeAgent", 2)]),
        ("import subprocess, re\nre.compile(x)\nmodel.eval()\nrun(x)", []),
    ],
)
def test_what_runs_code_is_found_under_whichever_name(source: str, wanted: list[tuple[str, int]]):
    assert calls_of(ast.parse(source)) == wanted


def test_the_warning_names_the_environment_the_line_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "games"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it is not imported')")
    (package / "code.py").write_text("async def agent(client):\n    eval('1')\n")
    monkeypatch.syspath_prepend(tmp_path)
    [warning] = warnings_of("environment game", AgentCode(function="games.code:agent"))
    assert warning.startswith("environment game: line 2 of code.py calls eval: if that is code which the")
    file = FunctionFile(path=package / "code.py", function="agent", place="key code.py of ConfigMap games")
    assert list(warnings_of("environment game", AgentCode(file=file))) == [warning]
    assert list(warnings_of("environment game", AgentCode())) == []
    assert list(warnings_of("environment game", AgentCode(function="games.none:agent"))) == []


def test_of_a_program_it_is_said_that_nobody_looks_at_it():
    [warning] = warnings_of("environment game", AgentCode(more={"command": ["python3", "agent.py"]}))
    assert warning.startswith("environment game: what the program python3 runs is not looked at: if that is")


def test_of_each_mcp_server_that_is_a_program_it_is_said_too(tmp_path: Path):
    (tmp_path / "tools.py").write_text("eval('1')\n")
    file = FunctionFile(path=tmp_path / "tools.py", function="TOOLS", place="key tools.py of ConfigMap tools")
    servers = [{"name": "wiki", "command": None}, {"name": "shell", "command": ["python3", "shell.py"]}]
    shell, own = warnings_of("environment game", AgentCode(file=file, more={"servers": servers}))
    assert shell.startswith("environment game: what MCP server shell runs is not looked at: if that is code")
    assert own.startswith("environment game: line 1 of tools.py calls eval: ")
