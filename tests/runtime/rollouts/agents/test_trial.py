"""A group of an environment is played before a run, against a policy that says what a script has."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chats import chat_model

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.gateway.replies import PlainReplies
from grpo_runtime.gateway.session import ChatModel, Limits
from grpo_runtime.rollouts.agents.kinds import COMMAND, COROUTINE, TOOLS, AgentCode
from grpo_runtime.rollouts.agents.source import AgentOptions
from grpo_runtime.rollouts.agents.trial import try_out

PROGRAMS = Path(__file__).with_name("program_examples.py")
PROMPT = Prompt(index=0, content="Guess.", columns={"high": "1"})


@pytest.fixture(autouse=True)
def examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")


async def told(
    options: AgentOptions, *, model: ChatModel | None = None, most_seconds: float = 60.0
) -> list[str]:
    """What is told of an environment."""
    found: list[str] = []
    await try_out(options, PROMPT, model=model or chat_model(), tell=found.append, most_seconds=most_seconds)
    return found


def coroutine(name: str) -> AgentOptions:
    code = AgentCode(function=f"agent_examples:{name}")
    return AgentOptions(name="game", kind=COROUTINE, code=code, limits=Limits())


async def test_text_calls_of_each_tool_and_broken_calls_are_said_and_what_they_lead_to_is_told() -> None:
    assert await told(coroutine("adds")) == [
        "environment game: plain text ends the episode after 1 turn, with no reward",
        'environment game: a call add({"a": 1, "b": 1}) is answered: \'2\'',
        "environment game: a call of add with other arguments fails the episode: environment game: the agent "
        "failed for row 1 of the dataset in step 1: it raised KeyError: 'a'",
        "environment game: a call of add that is cut off ends the episode, with no reward",
    ]


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (
            "has_a_typo_in_its_tool",
            r"^environment game: .*: it raised AttributeError: add has no arguement \(a script played the "
            r'policy: add\({"a": 1, "b": 1}\)\)$',
        ),
        ("returns_text", r"it raised TypeError: the agent returned str: return a number.*: plain text\)$"),
        pytest.param(
            "calls_nothing", r"it ended without a call: call client\.chat", marks=pytest.mark.matrix
        ),
        pytest.param("nothing", r"has no attribute nothing", marks=pytest.mark.matrix),
    ],
)
async def test_what_fails_whatever_the_policy_is_told_with_what_it_said(agent: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        await told(coroutine(agent))


@pytest.mark.matrix
async def test_a_program_is_played_too() -> None:
    def program(name: str) -> AgentOptions:
        code = AgentCode(more={"command": [sys.executable, str(PROGRAMS), name]})
        return AgentOptions(name="game", kind=COMMAND, code=code, limits=Limits(turns=2))

    assert await told(program("guesses")) == [
        "environment game: plain text ends the episode after 1 turn, with the reward 1"
    ]
    with pytest.raises(UserError, match=r"ended with code 1: [^$]*the board is away[^$]*: plain text\)"):
        await told(program("fails"))


async def test_a_group_that_is_not_played_in_time_is_told() -> None:
    with pytest.raises(UserError, match=r"^environment game: a group was not played within 2 s"):
        await told(coroutine("hangs"), most_seconds=2.0)


async def test_without_a_parser_no_tool_is_called_and_that_is_told() -> None:
    told_of = await told(coroutine("adds"), model=replace(chat_model(), replies=PlainReplies()))
    assert told_of[1].startswith("environment game: tool add was not called: the chat template, and the tok")
    assert len(told_of) == 2


def tools(name: str) -> AgentOptions:
    more = {"servers": [], "has_prompts": True, "system_prompt": None}
    code = AgentCode(function=f"agent_examples:{name}", more=more)
    return AgentOptions(name="game", kind=TOOLS, code=code, limits=Limits(), columns=("high",))


async def test_each_tool_of_an_environment_is_called_and_one_that_refuses_made_up_arguments_is_told() -> None:
    found = await told(tools("Adder"))
    assert found[:2] == [
        "environment game: plain text ends the episode after 1 turn, with the reward 0.5",
        'environment game: a call add({"a": 1, "b": 1}) is answered: \'2\'',
    ]
    assert found[2].startswith(
        'environment game: a call open({"path": "1"}) is answered: "Error: FileNotFound'
    )
    assert [sentence.split("is answered: ")[0] for sentence in found[3:4]] == [
        "environment game: a call of add with other arguments "
    ]
    assert found[4:] == [
        "environment game: a call of add that is cut off is answered: 'Error: no tool was called, because "
        "the call cannot be read: write it in the form of your tools'"
    ]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "MistypedAdder",
            r'^environment game: a call add\({"a": 1, "b": 1}\) is valid, and the tool fails with it: '
            r"Error: NameError: name 'c' is not defined",
        ),
        ("AdderWithoutReward", r"it raised LookupError: no score was kept \(a script played .*plain text\)$"),
    ],
)
async def test_a_typo_of_a_tool_and_a_reward_that_fails_are_told(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        await told(tools(name))
