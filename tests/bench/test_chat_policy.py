"""The policy that knows the form of a call: made twice it is the same, and each way of asking it is the same
question."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.made_policy import put_in_place
from grpo_learning.cases import CHAT_DATASET, CHAT_MODEL
from grpo_learning.chat_agents import by_tokens, right
from grpo_learning.chat_policy import (
    CALCULATOR,
    END,
    MAX_LENGTH_TOKENS,
    behind_call,
    call_of,
    write_chat_policy,
)
from grpo_runtime.gateway.chat_template import ChatTemplate
from grpo_runtime.model.load import load_policy, load_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "policy"
    write_chat_policy(folder, steps=2)
    return folder


def test_it_is_the_same_to_the_last_byte_each_time(made: Path, tmp_path: Path) -> None:
    write_chat_policy(tmp_path / "again", steps=2)
    files = {path.relative_to(made): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    again = {place: (tmp_path / "again" / place).read_bytes() for place in files}
    assert files == again
    assert load_policy(made / CHAT_MODEL, dtype="float32").config.max_position_embeddings == MAX_LENGTH_TOKENS


def test_the_question_by_messages_is_the_one_with_the_tool_and_so_is_what_follows_a_call(made: Path) -> None:
    tokenizer = load_tokenizer(made / CHAT_MODEL)
    template = ChatTemplate(tokenizer=tokenizer, end_ids=frozenset({tokenizer.eos_token_id}))
    rows = [json.loads(line) for line in (made / CHAT_DATASET).read_text().splitlines()]
    assert len(rows) == 64
    messages, expression = rows[0]["prompt"], rows[0]["prompt"][-1]["content"]
    prompt = template.prompt(messages)
    assert prompt == template.prompt(messages[-1:], tools=[CALCULATOR])
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    call = {"id": "t00000000", "type": "function", "function": function}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "t00000000", "content": rows[0]["answer"]}
    sampled = tokenizer(call_of(expression) + END)["input_ids"]
    behind = template.behind_reply(said, [answered], sampled=sampled, tools=[CALCULATOR])
    assert behind == tokenizer(behind_call(rows[0]["answer"]))["input_ids"]
    whole = template.prompt([messages[-1], said, answered], tools=[CALCULATOR])
    assert tokenizer.decode([*prompt, *sampled, *behind]) == tokenizer.decode(whole)


class Spoken:
    """A conversation, which is a fake: the policy says `texts`."""

    def __init__(self, *texts: str) -> None:
        self._texts = iter(texts)
        self.added: list[str] = []

    def add(self, what: str) -> None:
        self.added.append(what)

    async def sample(self) -> Any:
        self.text = next(self._texts)
        return self

    is_terminated = True


@pytest.mark.parametrize(
    ("says", "added"),
    [
        (call_of("6*7"), [behind_call("42")]),
        (call_of("6*"), [behind_call("?")]),
        ("<tool_call>\n{}\n</tool_call>", []),
        ("<tool_call>\n{\n</tool_call>", []),
        ("42", []),
    ],
)
async def test_a_call_is_answered_and_a_guess_is_not(says: str, added: list[str]) -> None:
    conversation = Spoken(says, "42")
    await by_tokens(conversation)
    assert conversation.added == added


def test_only_the_last_reply_is_rewarded() -> None:
    completions = [f"{call_of('6*7')}{END}{behind_call('42')}42", "42", f"{behind_call('42')}41", "x42"]
    assert right([*completions, [{"role": "assistant", "content": "42"}]], ["42"] * 5) == [1, 1, 0, 0, 1]


def test_of_two_that_make_it_at_once_the_second_leaves_what_is_there(tmp_path: Path) -> None:
    for name in ("made", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "by").write_text(name)
    put_in_place(tmp_path / "made", tmp_path / "there")
    assert (tmp_path / "there" / "by").read_text() == "there"
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", tmp_path / "nowhere")
