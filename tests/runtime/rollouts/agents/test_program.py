"""Episodes that a program plays, which is started for each of them, over engines that are a fake."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from chats import END, MAX_MODEL_LEN, chat_tokenizer, tokens
from playing import HUNG_SECONDS, Policy, play_groups, whole
from polling import until
from skipping_clock import SkippingClock

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.gateway.session import Limits
from grpo_runtime.process.procfs import kernel_state
from grpo_runtime.rollouts.agents.kinds import COMMAND, AgentCode
from grpo_runtime.rollouts.agents.program import find_program, result_of_output
from grpo_runtime.rollouts.agents.source import AgentOptions
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import FunctionFailedError, GenerateRequest, Rollout

EXAMPLE = Path(__file__).parents[4] / "examples" / "calculator" / "program.py"
PROGRAMS = Path(__file__).with_name("program_examples.py")


async def play(
    program: str | Sequence[str],
    says: Any,
    *,
    columns: dict[str, Any] | None = None,
    limits: Limits | None = None,
    prompt: str = "Guess.",
    num_samples: int = 1,
    at_a_time: int = 16,
    max_model_len: int = MAX_MODEL_LEN,
    environment: Mapping[str, str] | None = None,
) -> list[Rollout]:
    """The completions of a group that the example `program` makes, or a command."""
    command = [sys.executable, str(PROGRAMS), program] if isinstance(program, str) else [*program]
    options = AgentOptions(
        name="game",
        kind=replace(COMMAND, at_a_time=at_a_time),
        code=AgentCode(more={"command": command}, environment=environment or {}),
        limits=limits or Limits(),
    )
    requests = [GenerateRequest(tokens(prompt), seed) for seed in range(num_samples)]
    row = Prompt(index=0, content=prompt, columns=columns or {})
    group = Group(step=2, number=0, prompt=row, requests=requests)
    await play_groups(options, Policy(says), [group], num_tries=1, max_model_len=max_model_len)
    return whole(group)


def counts_up(prompt: str) -> str:
    return f"{prompt.count('higher')}{END}"


async def test_what_a_program_samples_is_trained_and_its_last_line_is_its_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # nothing listens there
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for game in await play("guesses", counts_up, columns={"high": "1"}, num_samples=2):
        told = "\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"
        assert chat_tokenizer().decode(game.completion_ids) == f"0{END}{told}1{END}"
        assert (game.num_sampled, game.returned, game.is_terminated) == (4, 1.0, True)
        assert game.trajectory is not None and "output" not in game.trajectory


async def test_the_program_of_the_guide_asks_a_calculator(calculator_volumes: Path) -> None:
    def says(prompt: str) -> str:
        return f"={END}" if prompt.endswith("2*3<|im_end|>\n<|im_start|>assistant\n") else END

    columns = {"answer": "=6"}
    guide = (EXAMPLE.parents[2] / "docs" / "guides" / "agents.md").read_text()
    [written] = re.findall(r"^    command: (.*program\.py.*)$", guide, re.MULTILINE)
    [episode] = await play(
        yaml.safe_load(written),
        says,
        prompt="2*3",
        columns=columns,
        environment={"GRPO_VOLUMES_DIR": str(calculator_volumes)},
    )
    assert (episode.returned, episode.num_sampled) == (1.0, 3)
    assert EXAMPLE.read_text().partition("import OpenAI\n\n")[2] in guide


async def test_the_other_key_of_a_program_is_of_a_judge_which_is_not_trained() -> None:
    [episode] = await play("judges", lambda prompt: f"7{END}" if "Score 0." in prompt else f"0{END}")
    assert (episode.returned, len(episode.sequences), episode.num_sampled) == (7.0, 1, 2)
    assert episode.trajectory is not None and episode.trajectory["state"] == {"sample": 0}


async def test_a_program_that_fails_is_told_with_its_code_and_the_end_of_its_output() -> None:
    with pytest.raises(FunctionFailedError) as raised:
        await play("fails", counts_up)
    sentence = str(raised.value)
    assert (
        "environment game: the agent failed for row 1 of the dataset in step 3: the program pyth" in sentence
    )
    assert "ended with code 1: [end of standard error]\n" in sentence
    assert "ValueError: the board is away\n[end of standard output]\n..." in sentence
    assert sentence.endswith(".\nasks (key)")


async def test_a_program_that_comes_to_a_limit_is_cut_and_the_end_of_its_output_is_kept() -> None:
    [episode] = await play("goes_on", counts_up, limits=Limits(turns=2))
    assert [sequence.is_terminated for sequence in episode.sequences] == [False] * 2
    assert episode.trajectory is not None
    assert "HTTP Error 429" in episode.trajectory["output"]
    assert episode.trajectory["output"].endswith("[end of standard output]\nasks\nasks\nasks")


async def test_a_program_whose_time_is_over_ends_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, clock, limits = tmp_path / "pids", SkippingClock(monkeypatch), Limits(seconds=HUNG_SECONDS / 2)
    playing = asyncio.ensure_future(play("waits", counts_up, columns={"pids": str(pids)}, limits=limits))
    await until(lambda: is_written(pids))
    clock.skip(limits.seconds)
    [episode] = await playing
    assert (episode.num_sampled, episode.is_terminated, episode.returned) == (2, False, None)
    assert episode.trajectory is not None
    assert episode.trajectory["output"] == "[end of standard output]\nwaits"
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) == 3 and not any(is_running(pid) for pid in found)


async def test_what_a_program_wrote_that_called_nothing_in_its_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, clock, limits = tmp_path / "written", SkippingClock(monkeypatch), Limits(seconds=30)
    program = ["sh", "-c", f"echo loads >&2; touch {written}; exec sleep 300"]
    playing = asyncio.ensure_future(play(program, counts_up, limits=limits))
    await until(written.exists)
    clock.skip(limits.seconds)
    sentence = r"it got no answer within limits\.seconds \(30\), and wrote: \[end of standard error\]\nloads$"
    with pytest.raises(FunctionFailedError, match=sentence):
        await playing


async def test_the_processes_of_a_program_end_with_its_worker(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    playing = asyncio.ensure_future(play("waits", counts_up, columns={"pids": str(pids)}))
    await until(lambda: is_written(pids))
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    found = [int(pid) for pid in pids.read_text().split()]
    await until(lambda: not any(is_running(pid) for pid in found))


@pytest.mark.matrix
async def test_a_program_that_writes_without_end_has_its_last_line_read() -> None:
    [episode] = await play("writes", counts_up)
    assert episode.returned == 0.5


@pytest.mark.parametrize("at_a_time", [1, pytest.param(2, marks=pytest.mark.matrix)])
async def test_more_programs_than_there_are_places_take_turns(at_a_time: int, tmp_path: Path) -> None:
    """A program notes that it begins, and that it ends."""
    notes = tmp_path / "notes"
    columns = {"notes": str(notes), "ends_behind": at_a_time}
    await play("notes", counts_up, columns=columns, num_samples=2, at_a_time=at_a_time)
    assert notes.read_text() == {1: "+-+-", 2: "++--"}[at_a_time]


@pytest.mark.parametrize(
    "replayed",
    ["replays_tool_calling_agent", pytest.param("replays_code_agent", marks=pytest.mark.matrix)],
)
async def test_each_call_of_an_agent_that_rewrites_its_history_is_a_sequence(replayed: str) -> None:
    [episode] = await play(replayed, lambda prompt: f"print(46){END}")
    assert [sequence.num_sampled for sequence in episode.sequences] == [10, 10]


@pytest.fixture(scope="module")
def smolagents(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the package, whose requirements are ours."""
    folder = str(tmp_path_factory.mktemp("smolagents"))
    package = "smolagents==1.26.0"
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--target", folder, "--no-deps", package], check=True, timeout=120
    )
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize("agent", ["ToolCallingAgent", "CodeAgent"])
async def test_both_agents_of_smolagents_run_as_programs(
    agent: str, smolagents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of theirs continues the one before, so that each is a sequence."""
    monkeypatch.setenv("PYTHONPATH", smolagents)

    def call(name: str, **arguments: Any) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>{END}"

    def says(prompt: str) -> str:
        has_result = "46" in prompt.rpartition("<|im_start|>user")[2]
        if agent == "CodeAgent":
            code = "final_answer(46)" if has_result else "print(add(12, 34))"
            return f"Thought: I compute.\n<code>\n{code}\n</code>{END}"
        return call("final_answer", answer="46") if has_result else call("add", a=12, b=34)

    command = [sys.executable, str(PROGRAMS.with_name("smolagents_program.py")), agent]
    [episode] = await play(command, says, prompt="What is 12 + 34?", max_model_len=100_000)
    assert (episode.returned, episode.is_terminated) == (1.0, True)
    assert episode.calls is not None and len(episode.calls.turns) == len(episode.sequences) == 2
    assert sum(sequence.num_sampled for sequence in episode.sequences) == episode.num_sampled


def test_a_program_that_is_not_there_is_told_before_the_run() -> None:
    with pytest.raises(UserError, match="environment game: command: there is no program nothere in this im"):
        find_program({"command": ["nothere", "x"], "field": "environment game"})


@pytest.mark.parametrize(
    ("output", "reward", "state"),
    [
        ("says\n0.5\n\n", 0.5, None),
        ("1", 1.0, None),
        ('{"reward": 2, "state": [1]}\n', 2.0, [1]),
        ('{"state": [1]}\n', None, [1]),
        ("0.5\nthe end\n", None, None),
        ('{"score": 1}', None, None),
        ("true", None, None),
        ("{}", None, None),
        ("", None, None),
    ],
)
def test_the_last_line_is_a_reward_where_it_is_one(output: str, reward: float | None, state: Any) -> None:
    assert result_of_output(output) == {"reward": reward, "state": state}


@pytest.mark.parametrize("output", ["NaN", "Infinity", "1" * 400, '{"reward": "1"}', '{"state": NaN}'])
def test_a_last_line_that_is_meant_as_a_reward_and_is_none_is_an_error(output: str) -> None:
    with pytest.raises((TypeError, ValueError), match=r"the agent returned|no JSON"):
        result_of_output(output)


def is_written(pids: Path) -> bool:
    """Whether the program that waits has written all that it writes."""
    return pids.exists() and pids.read_text().count("\n") == 3


def is_running(pid: int) -> bool:
    try:
        return kernel_state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
