"""The loop of calls of an environment that is tools."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chats import END, chat_tokenizer
from openai import BadRequestError
from playing import SEEDS, Policy, group_of, play_groups, whole
from tool_scripts import ScriptedClient, played

from grpo_runtime.errors import UserError
from grpo_runtime.gateway.session import Limits
from grpo_runtime.rollouts.agents.kinds import TOOLS, AgentCode
from grpo_runtime.rollouts.agents.source import AgentOptions
from grpo_runtime.rollouts.agents.tools import ToolPlayer
from grpo_runtime.rollouts.interface import Rollout


@pytest.fixture(autouse=True)
def examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")


def player_of(name: str, *, has_prompts: bool = True, system_prompt: str | None = None) -> ToolPlayer:
    return ToolPlayer(
        {
            "field": "environment game",
            "function": f"tool_examples:{name}",
            "file": None,
            "columns": ["goal"],
            "servers": [],
            "has_prompts": has_prompts,
            "system_prompt": system_prompt,
        }
    )


async def test_the_policy_calls_methods_of_an_object_of_its_own_until_it_calls_none():
    client = ScriptedClient([("up", '{"by": 2}'), ("later", "{}")], [("up", '{"by": 0}')], "There.", "More.")
    said = await played(player_of("Counter"), client)
    assert said == {"reward": 1.0, "state": None, "failures": {}}
    assert client.messages[0] == {"role": "user", "content": "Go. Count to 3."}
    assert client.told == ["2", '{"count": 3}', "3"]
    assert [tool["function"]["name"] for tool in client.tools] == ["breaks", "later", "meets", "up", "waits"]


async def test_what_reset_says_is_behind_the_last_words_of_the_user():
    player = player_of("Counter")
    system = {"role": "system", "content": "Be brief."}
    chat = [system, {"role": "user", "content": "Go."}, {"role": "assistant", "content": "Yes?"}]
    client = ScriptedClient("There.")
    await played(player, client, prompt=chat)
    assert client.messages == [system, {"role": "user", "content": "Go. Count to 3."}, chat[2]]
    assert chat[1]["content"] == "Go."
    client = ScriptedClient("There.")
    await played(player, client, prompt=[system])
    assert client.messages == [system, {"role": "user", "content": " Count to 3."}]


async def test_what_reset_says_is_a_part_behind_parts_and_alone_where_the_user_said_nothing():
    part = {"type": "text", "text": "Go."}
    told = {"type": "text", "text": " Count to 3."}
    for content, wanted in (([part], [part, told]), (None, " Count to 3.")):
        client = ScriptedClient("There.")
        await played(player_of("Counter"), client, prompt=[{"role": "user", "content": content}])
        assert client.messages == [{"role": "user", "content": wanted}]


async def test_a_chat_begins_with_the_system_prompt_of_the_job_unless_it_has_one():
    player = player_of("BOTH", system_prompt="Be brief.")
    chat = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "Go."}]
    for prompt, system in (("Go.", "Be brief."), (chat[1:], "Be brief."), (chat, "Be long.")):
        client = ScriptedClient("There.")
        await played(player, client, prompt=prompt)
        assert client.messages == [{"role": "system", "content": system}, chat[1]]


async def test_without_a_dataset_the_task_is_what_reset_says_alone():
    client = ScriptedClient("There.")
    await played(player_of("Counter", has_prompts=False), client, prompt="417")
    assert client.messages == [{"role": "user", "content": " Count to 3."}]


async def test_broken_calls_and_tools_that_fail_are_told_to_the_policy_and_counted_apart():
    calls = [("jump", "{}"), ("up", "{"), ("up", '{"by": "far"}'), ("breaks", "{}"), ("up", '{"by": 3}')]
    client = ScriptedClient(calls, "There.")
    said = await played(player_of("Counter"), client)
    assert said == {"reward": 1.0, "state": None, "failures": {"policy": 3, "tool": 1}}
    assert client.told == [
        "Error: there is no tool jump, but breaks, later, meets, up, waits",
        "Error: the arguments of up are no JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        "Error: the arguments of up are wrong: by: 'far' is not of type 'integer'",
        "Error: OSError: the disk is full",
        "3",
    ]


async def test_a_call_that_cannot_be_read_is_told_and_the_chat_goes_on():
    """The gateway counts it."""
    client = ScriptedClient("<tool_call>{", [("up", '{"by": 3}')], "There.")
    assert await played(player_of("Counter"), client) == {"reward": 1.0, "state": None, "failures": {}}
    assert client.messages[2]["role"] == "user"
    assert client.messages[2]["content"].startswith("Error: no tool was called, because the call cannot be ")
    assert client.told == ["3"]


async def test_a_limit_ends_the_loop_and_the_reward_is_asked():
    """The client's script ends with a refused call."""
    assert (await played(player_of("Counter"), ScriptedClient([("up", '{"by": 3}')])))["reward"] == 1.0


async def test_a_chat_that_is_refused_behind_a_reply_ends_as_a_failure_of_the_policy_with_its_reward():
    for client in (ScriptedClient([("up", '{"by": 3}')], None), ScriptedClient("<tool_call>{", None)):
        said = await played(player_of("Counter"), client)
        assert said["failures"] == {"policy": 1}
        assert said["reward"] == float(client.told == ["3"])


async def test_a_chat_that_is_refused_before_any_reply_is_a_failure_of_the_environment():
    with pytest.raises(BadRequestError, match="no such token"):
        await played(player_of("Counter"), ScriptedClient(None))


async def test_a_reply_that_was_cut_ends_the_loop_with_its_calls_unmade():
    client = ScriptedClient([("up", '{"by": 3}')], "There.", finish_reason="length")
    assert (await played(player_of("Counter"), client))["reward"] == 0.0
    assert client.told == []


async def test_a_tool_that_blocks_keeps_no_other_episode_waiting():
    player = player_of("Counter")
    clients = ScriptedClient([("waits", "{}")], "There."), ScriptedClient([("meets", "{}")], "There.")
    async with asyncio.timeout(30):
        await asyncio.gather(*(played(player, client) for client in clients))
    assert [client.told for client in clients] == [["met"], ["met"]]


async def test_get_reward_may_return_a_state_for_reward_functions():
    said = await played(player_of("TellsItsState"), ScriptedClient([("up", '{"by": 3}')], "There."))
    assert said == {"reward": 0.5, "state": {"count": 3}, "failures": {}}


async def test_rewards_may_be_awaited_and_functions_have_none():
    assert (await played(player_of("Judged"), ScriptedClient("There.")))["reward"] == 0.25
    client = ScriptedClient([("add", '{"a": 1, "b": 2}'), ("echo", '{"text": "on"}')], "There.")
    said = await played(player_of("BOTH"), client)
    assert (said["reward"], client.told) == (None, ["3", "on"])
    assert client.messages[0] == {"role": "user", "content": "Go."}


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("FailsAtReset", ConnectionError, "no game server"),
        ("HasNoNumber", TypeError, "returned str: return a number"),
    ],
)
async def test_reset_and_get_reward_that_fail_are_failures_of_the_environment(
    name: str, error: type[Exception], sentence: str
):
    with pytest.raises(error, match=sentence):
        await played(player_of(name), ScriptedClient("There."))


async def test_two_tools_of_one_name_are_an_error_that_says_where_they_are():
    sentence = "environment game: its own code and its own code both have a tool add: rename one"
    with pytest.raises(UserError, match=sentence):
        await player_of("TWICE").start()


EXAMPLE = str(Path(__file__).with_name("mcp_example.py"))
SHELL = {"name": "shell", "url": None, "command": [sys.executable, EXAMPLE], "per_session": False}


async def episodes_of(
    policy: Policy,
    *,
    function: str | None,
    servers: Sequence[Any] = (),
    limits: Limits | None = None,
    num_tries: int = 1,
) -> list[Rollout]:
    """Those of a group, in a worker of their own."""
    more = {"servers": list(servers), "has_prompts": True, "system_prompt": None}
    options = AgentOptions(
        name="game",
        kind=TOOLS,
        code=AgentCode(function=function, more=more),
        limits=limits or Limits(),
        columns=("goal",),
    )
    group = group_of({"goal": 3})
    await play_groups(options, policy, [group], num_tries=num_tries)
    return whole(group)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def called(name: str, **arguments: Any) -> str:
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>{END}"


def text_of(episode: Rollout) -> str:
    return chat_tokenizer().decode(episode.completion_ids)


async def test_an_episode_of_tools_is_one_sequence_and_a_limit_cuts_it_with_its_reward():
    policy = Policy(lambda prompt: called("up", by=1 if "Error: " in prompt else "far"))
    for episode in await episodes_of(policy, function="tool_examples:Counter", limits=Limits(turns=4)):
        assert (episode.returned, episode.is_terminated, len(episode.sequences)) == (1.0, False, 1)
        assert episode.calls is not None
        assert episode.calls.failures == {"policy": 1, "limit": 1}
        assert text_of(episode).count("<tool_response>") == 3
        assert "Guess. Count to 3." in chat_tokenizer().decode(episode.prompt_ids)


async def test_calls_that_cannot_be_read_are_failures_of_the_policy_and_what_it_is_told_is_one_chat():
    def says(prompt: str) -> str:
        if "Error: no tool was called" not in prompt:
            return f'<tool_call>{{"name": "up{END}'
        return called("up", by=3) if "Error: the arg" in prompt else called("up", by="far")

    for episode in await episodes_of(Policy(says), function="tool_examples:Counter", limits=Limits(turns=3)):
        assert (episode.returned, len(episode.sequences)) == (1.0, 1)
        assert episode.calls is not None
        assert episode.calls.failures == {"policy": 2, "limit": 1}


async def test_functions_and_a_server_are_one_set_of_tools_and_no_process_is_left():
    def says(prompt: str) -> str:
        if "<tool_response>" not in prompt:
            return called("add", a=1, b=2)
        return f"There.{END}" if "<tool_response>3</tool_response>" not in prompt else called("processes")

    def plays(prompt: str) -> str:
        return f"There.{END}" if prompt.count("<tool_response>") == 2 else says(prompt)

    episodes = await episodes_of(Policy(plays), function="tool_examples:add", servers=[SHELL])
    found = [text_of(episode).split("<tool_response>")[2].split("<")[0].split() for episode in episodes]
    pids = {int(pid) for pair in found for pid in pair}
    assert len(pids) == 3
    assert not [pid for pid in pids if is_there(pid)]


@pytest.mark.matrix
async def test_a_server_that_hangs_is_cut_with_its_episode():
    policy = Policy(lambda prompt: called("hangs"))
    for episode in await episodes_of(policy, function=None, servers=[SHELL], limits=Limits(seconds=5)):
        assert (episode.returned, episode.is_terminated) == (None, False)


@pytest.mark.matrix
async def test_an_episode_that_lost_its_server_is_begun_again():
    """The first call of each episode ends the server, once."""
    seen: set[int] = set()

    def says(prompt: str) -> str:
        has_died, _ = len(seen) >= len(SEEDS), seen.add(len(seen))
        return f"There.{END}" if has_died else called("dies")

    episodes = await episodes_of(Policy(says), function=None, servers=[SHELL], num_tries=3)
    assert [text_of(episode) for episode in episodes] == [f"There.{END}"] * len(SEEDS)
