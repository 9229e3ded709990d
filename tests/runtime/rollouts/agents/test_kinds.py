"""The registry of kinds of environments, and a kind that is added to it."""

import asyncio
import io
import os
from pathlib import Path

import pytest
from chats import END
from playing import Policy, group_of, play_groups
from quiz_kind import Quiz

from grpo_api.v1alpha1.spec import EnvironmentSpec
from grpo_runtime.gateway.session import Limits
from grpo_runtime.process.line_worker import Lines
from grpo_runtime.rollouts.agents.kinds import AGENT_KINDS, COROUTINE, TOOLS, AgentCode, AgentKind, kind_of
from grpo_runtime.rollouts.agents.source import AgentOptions
from grpo_runtime.rollouts.agents.worker import play_all


def test_the_field_that_a_spec_has_says_the_kind():
    assert AGENT_KINDS.keys() <= EnvironmentSpec.model_fields.keys()
    tools = {"mcpServers": [{"name": "wiki", "url": "http://wiki"}]}
    assert kind_of(EnvironmentSpec.from_object({"name": "game", "tools": tools})) is TOOLS
    assert kind_of(EnvironmentSpec.from_object({"name": "game", "function": "a:b"})) is COROUTINE


async def test_a_kind_is_a_module_and_a_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    kind = AgentKind(
        module="quiz_kind", of_spec=lambda spec, *_: AgentCode(more={"question": f"{spec.name}: 2 and 2?"})
    )
    monkeypatch.setitem(AGENT_KINDS, "quiz", kind)
    code = kind.of_spec(EnvironmentSpec(name="sums", function="a:b"), None, Path())  # type: ignore[arg-type]
    policy, group = Policy(lambda prompt: f"{4 if 'sums: 2 and 2?' in prompt else 0}{END}"), group_of({})
    options = AgentOptions(name="quiz", kind=AGENT_KINDS["quiz"], code=code, limits=Limits())
    await play_groups(options, policy, [group])
    assert [episode.returned for episode in group.completions] == [1.0, 1.0]


def test_what_plays_episodes_is_closed_once_no_other_one_comes():
    async def ended() -> asyncio.StreamReader:
        requests = asyncio.StreamReader()
        requests.feed_eof()
        return requests

    quiz = Quiz({"question": "2 and 2?"})
    with asyncio.Runner() as runner:
        play_all(quiz, Lines(runner.run(ended()), io.StringIO()), runner)
    assert quiz.is_closed
