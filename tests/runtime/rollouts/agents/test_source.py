"""Episodes of agents in their own process, over engines that are a fake: what is trained, and what happens
when an agent fails."""

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chats import END, chat_tokenizer, tokens, written
from playing import SEEDS, Policy, group_of, play_groups, whole
from skipping_clock import SkippingClock

from grpo_api.contract.environment import Env
from grpo_runtime.gateway.session import Limits
from grpo_runtime.process.confinement import landlock_version
from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.agents.kinds import COROUTINE, AgentCode
from grpo_runtime.rollouts.agents.source import AgentOptions, failures_in, output_in, returned_by
from grpo_runtime.rollouts.function.shared_process import HANG_SECONDS
from grpo_runtime.rollouts.interface import (
    FunctionFailedError,
    GivenUp,
    Rollout,
    RolloutLostError,
)


@pytest.fixture(autouse=True)
def examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")


CALL = '<tool_call>\n{"name":"add","arguments":{"b":2,"a":1}}\n</tool_call>' + END
BEGIN = "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"


async def play(
    agent: str,
    policy: Policy,
    *,
    columns: dict[str, Any] | None = None,
    limits: Limits | None = None,
    hang_seconds: float = HANG_SECONDS,
    num_tries: int = 3,
) -> list[Rollout]:
    """The completions of a group. Raises FunctionFailedError with the failure of one that is given up."""
    group = group_of(columns or {})
    options = options_of(agent, limits)
    await play_groups(options, policy, [group], hang_seconds=hang_seconds, num_tries=num_tries)
    return whole(group)


async def play_each(agents: Sequence[str], policy: Policy) -> list[list[Rollout]]:
    """The completions of a group for each of these examples, all in one process."""
    groups = [group_of({"plays": agent, "high": "1"}) for agent in agents]
    await play_groups(options_of("plays_what_the_row_says"), policy, groups)
    return [group.completions for group in groups]


def options_of(agent: str, limits: Limits | None = None) -> AgentOptions:
    code = AgentCode(function=f"agent_examples:{agent}")
    return AgentOptions(name="game", kind=COROUTINE, code=code, limits=limits or Limits())


def counts_up(prompt: str) -> str:
    return f"{prompt.count('higher')}{END}"


def adds_and_counts(prompt: str) -> str:
    if '"name": "add"' not in prompt:
        return counts_up(prompt)
    return f"It is 3.{END}" if "<tool_response>3" in prompt else CALL


async def test_what_agents_sample_is_trained_and_what_games_and_tools_say_is_not():
    policy = Policy(adds_and_counts)
    games, tools, forgetful = await play_each(("guesses", "adds", "forgets"), policy)
    told = "\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"
    for game in games:
        assert game.prompt_ids == tokens(BEGIN)
        assert chat_tokenizer().decode(game.completion_ids) == f"0{END}{told}1{END}"
        assert game.num_sampled == 4 and game.is_terminated
        assert game.calls is not None
        assert (game.calls.environment, game.calls.overridden) == ("game", {"temperature": 2})
        begin = 2 + len(tokens(told))
        assert [(turn.start, turn.end) for turn in game.calls.turns] == [(0, 2), (begin, begin + 2)]
        assert all(turn.seconds >= turn.waited_seconds >= 0 for turn in game.calls.turns)
    for tool in tools:
        assert tool.num_sampled == len(written(CALL)) + len(written(f"It is 3.{END}"))
        assert "<tool_response>3</tool_response>" in chat_tokenizer().decode(tool.completion_ids)
    for episode in forgetful:
        [branch] = episode.branches
        assert (branch.num_sampled, episode.num_sampled) == (2, 4)
        assert branch.prompt_ids != episode.prompt_ids
    # a call of each group, and each of its episodes, has a seed of its own
    assert [request.seed for request in policy.requests].count(SEEDS[0]) == 3


async def test_an_agent_whose_policy_writes_a_call_that_cannot_be_read_gets_its_text_and_it_is_counted():
    for episode in await play("adds", Policy(lambda _: f"<tool_call>{{add{END}")):
        assert chat_tokenizer().decode(episode.completion_ids) == f"<tool_call>{{add{END}"
        assert episode.calls is not None and episode.calls.failures == {"policy": 1}


async def test_reward_functions_see_the_chats_of_an_episode_and_its_state_and_nothing_of_a_judge_is_trained():
    policy = Policy(lambda prompt: f"7{END}" if "Score 0." in prompt else counts_up(prompt))
    states, judged = await play_each(("tells_its_state", "asks_a_judge"), policy)
    for episode in states:
        assert episode.returned is None
        assert episode.trajectory == {
            "chats": [
                [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "0"}],
                [
                    {"role": "user", "content": "Guess."},
                    {"role": "assistant", "content": "0"},
                    {"role": "user", "content": "higher"},
                    {"role": "assistant", "content": "1"},
                ],
            ],
            "state": {"guesses": ["0"]},
        }
    for episode in judged:
        assert (episode.returned, len(episode.sequences), episode.num_sampled) == (7.0, 1, 2)
        assert episode.is_terminated
    own = [request for request in policy.requests if request.own_parameters is not None]
    assert [request.own_parameters for request in own] == ['{"temperature": 0}'] * len(SEEDS)
    assert len({request.seed for request in own} - set(SEEDS)) == len(SEEDS)


async def test_an_agent_that_closes_its_clients_closes_no_others_and_no_proxy_gets_its_calls(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        # nothing listens there
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    rollouts = await play("closes_its_clients", Policy(counts_up), num_tries=1)
    assert [rollout.num_sampled for rollout in rollouts] == [2, 2]


async def test_an_episode_that_failed_is_begun_again_and_the_others_are_kept(tmp_path: Path):
    policy = Policy(counts_up)
    rollouts = await play("fails_once", policy, columns={"marker": str(tmp_path / "failed")})
    assert [rollout.num_sampled for rollout in rollouts] == [2, 2]
    assert sorted(request.seed for request in policy.requests) == [11, 12, 12]
    failures = [rollout.calls.failures for rollout in rollouts if rollout.calls is not None]
    assert failures == [{}, {"environment": 1}]


async def test_an_episode_that_always_fails_is_given_up_and_the_others_are_kept():
    policy = Policy(counts_up)
    group = group_of({"marker": "/nowhere/at/all"})
    await play_groups(options_of("fails_once"), policy, [group])
    first, second = group.rollouts
    assert isinstance(first, Rollout) and first.num_sampled == 2
    assert isinstance(second, GivenUp)
    assert second.why.startswith(
        "environment game: the agent failed for row 1 of the dataset in step 3: it raised "
    )
    assert second.why.endswith(". It was tried 3 times")
    assert group.is_left_out and group.is_sampled


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("returns_text", r"it raised TypeError: the agent returned str: return a number, or None"),
        ("ends_its_process", r"environment game: the agent failed in step 3: .*3"),
    ],
)
async def test_an_agent_that_always_fails_ends_the_run_with_its_words(agent: str, sentence: str):
    with pytest.raises(FunctionFailedError, match=sentence):
        await play(agent, Policy(counts_up))


async def test_an_episode_whose_time_is_over_is_cut_and_no_failure(monkeypatch: pytest.MonkeyPatch):
    policy, clock, limits = Policy(counts_up), SkippingClock(monkeypatch), Limits(seconds=30)
    playing = asyncio.ensure_future(play("waits_after_its_call", policy, limits=limits))
    while len(policy.requests) < len(SEEDS) and not playing.done():
        await asyncio.wait([playing], timeout=0.05)
    clock.skip(limits.seconds)
    for episode in await playing:
        assert (episode.num_sampled, episode.is_terminated, episode.returned) == (2, False, None)
    assert len(policy.requests) == len(SEEDS)


async def test_an_agent_that_calls_nothing_until_its_time_is_over_has_failed():
    with pytest.raises(FunctionFailedError, match=r"it got no answer within limits\.seconds \(0\.5\)"):
        await play("hangs", Policy(counts_up), limits=Limits(seconds=0.5), num_tries=1)


@pytest.mark.matrix
async def test_an_agent_that_blocks_its_event_loop_has_failed():
    with pytest.raises(FunctionFailedError, match=r"its event loop was blocked for more than 0\.2 s"):
        await play(
            "blocks_after_its_call",
            Policy(counts_up),
            limits=Limits(seconds=3),
            hang_seconds=0.2,
            num_tries=1,
        )


@pytest.mark.parametrize(
    "end",
    [
        {},
        {"is_cut": True},
        {"added": [], "max_tokens": None},
        {"reward": 1.0},
        *(
            {"is_done": True, "reward": reward}
            for reward in (math.nan, math.inf, True, 1, "1", [1.0], 10**400)
        ),
    ],
    ids=str,
)
def test_what_no_agent_ends_with_fails_its_episode_with_the_line(end: dict[str, Any]):
    with pytest.raises(WorkerFailedError, match=r"its process wrote \{"):
        returned_by({"id": 3, **end})


@pytest.mark.parametrize(
    "failures",
    [{"policy": 1.0}, {"policy": -1}, {"policy": True}, {"policy": 10**9}, {"user": 1}, ["policy"], 3],
)
def test_counts_of_failures_that_nobody_can_have_fail_the_episode_with_the_line(failures: Any):
    with pytest.raises(WorkerFailedError, match=r"its process wrote \{'failures'"):
        failures_in({"failures": failures, "id": 3, "is_done": True})


def test_an_output_that_is_no_text_fails_the_episode_with_the_line():
    assert output_in({"is_done": True, "output": "asks"}) == "asks"
    with pytest.raises(WorkerFailedError, match=r"its process wrote \{'output': 3"):
        output_in({"output": 3, "is_done": True})


def test_failures_are_those_that_there_were():
    assert failures_in({"is_done": True, "failures": {"policy": 2, "tool": 0}}) == {"policy": 2}
    assert failures_in({"is_done": True}) == {}


async def test_what_a_process_reports_of_tokens_is_not_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Its first end has a reward that is no number."""
    columns = {"marker": str(tmp_path / "has-ended")}
    for episode in await play("ends_as_it_likes", Policy(counts_up), columns=columns):
        assert (episode.returned, episode.is_terminated) == (0.5, True)
        assert episode.completion_ids == written(f"0{END}")
        assert episode.rollout_logprobs == (-0.01, -0.02)
    assert "the agent failed for row 1 of the dataset in step 3: its process wrote {'id': " in caplog.text
    assert "'reward': nan" in caplog.text


async def test_what_is_asked_with_the_key_of_another_episode_is_trained_there():
    first, second = await play("takes_the_key_of_the_other", Policy(counts_up))
    begin = BEGIN.replace("Guess.", "Guess. {}")
    prompts = [
        [chat_tokenizer().decode(sequence.prompt_ids) for sequence in episode.sequences]
        for episode in (first, second)
    ]
    assert prompts == [[begin.format(0), begin.format(1)], [begin.format(1)]]


async def test_engines_that_fail_are_told_as_such_and_no_agent_is_tried_again():
    class LostPolicy(Policy):
        async def generate(self, requests: Any, *, stays_awake: bool) -> Any:
            self.requests += requests
            raise RolloutLostError("no engine for 60 s")

    policy = LostPolicy(counts_up)
    with pytest.raises(RolloutLostError, match="no engine for 60 s"):
        await play("guesses", policy, columns={"high": "1"})
    assert len(policy.requests) <= len(SEEDS)


async def test_an_agent_that_calls_nothing_is_told_what_to_call():
    sentence = r"for row 1 .*: it ended without a call: call client\.chat\.completions\.create"
    with pytest.raises(FunctionFailedError, match=sentence):
        await play("calls_nothing", Policy(counts_up), num_tries=1)


async def test_an_agent_whose_first_prompt_has_no_room_is_told_so():
    sentence = r"for row 1 .*: its prompt is too long: raise limits\.promptTokens or engine\.max"
    limits = Limits(prompt_tokens=2)
    with pytest.raises(FunctionFailedError, match=sentence):
        await play("guesses", Policy(counts_up), columns={"high": "1"}, limits=limits, num_tries=1)


async def test_an_agent_that_goes_on_past_its_limit_has_what_it_sampled_until_then_as_a_cut_completion():
    policy = Policy(counts_up)
    for episode in await play("goes_on_for_ever", policy, limits=Limits(turns=3)):
        assert [sequence.is_terminated for sequence in episode.sequences] == [False] * 3
        assert (episode.num_sampled, episode.returned) == (6, None)
        assert episode.calls is not None and len(episode.calls.turns) == 3
        assert (episode.calls.overridden, episode.calls.failures) == ({}, {"limit": 1})
    assert len(policy.requests) == 6


async def test_an_agent_that_raises_on_what_a_limit_has_cut_has_not_failed():
    policy = Policy(lambda _: f"1234{END}")
    for episode in await play("reads_its_answer", policy, limits=Limits(tokens=3)):
        assert (episode.num_sampled, episode.is_terminated, episode.returned) == (3, False, None)
        assert episode.calls is not None and episode.calls.failures == {"limit": 1}
    assert len(policy.requests) == len(SEEDS)


@pytest.mark.parametrize("is_pod", [True, pytest.param(False, marks=pytest.mark.matrix)])
async def test_an_agent_in_a_pod_finds_no_token_of_its_job(
    is_pod: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Outside of pods the files are those of the user who runs it."""
    if landlock_version() < 2:
        pytest.skip("this kernel has no Landlock that serves, so nothing hides files")
    folders = {
        Env.TOKENS_DIR: tmp_path / "etc" / "tokens",
        Env.VOLUMES_DIR: tmp_path / "volumes",
        "HF_TOKEN_PATH": tmp_path / "etc" / "hub" / "token",
    }
    tokens_of_job = [
        tmp_path / "etc" / "tokens" / "admin-token",
        tmp_path / "volumes" / "secrets" / "bucket" / "secretAccessKey",
        tmp_path / "etc" / "hub" / "token",
    ]
    data = tmp_path / "volumes" / "configmaps" / "data.jsonl"
    for path in (*tokens_of_job, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of the job")
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("HF_TOKEN", "of the job")
    if is_pod:
        monkeypatch.setenv(Env.STALL_TIMEOUT_SECONDS, "1800")
    columns = {"places": [str(path) for path in tokens_of_job], "data": str(data)}
    for episode in await play("looks_for_tokens", Policy(counts_up), columns=columns):
        assert (episode.returned == 0) == is_pod
