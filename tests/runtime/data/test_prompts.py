"""Datasets: the prompts that are read from them, and the errors of those that cannot be used."""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from data_runs import dataset_run

from grpo_api.source import parse_source
from grpo_runtime.data.prompt import ChatOptions, Prompt, encode_prompt
from grpo_runtime.data.source import load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.model.char_tokenizer import char_tokenizer
from grpo_runtime.rewards.registry import needs_answers
from grpo_runtime.storage.source_paths import path_of


def write(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return f"file://{path}"


def load(
    source: str, *, volumes_dir: Path = Path("/nowhere"), builtin: str = "exact_match", **dataset: Any
) -> tuple[Prompt, ...]:
    run = dataset_run(source, builtin=builtin, **dataset)
    return load_prompts(run, volumes_dir=volumes_dir, needs_answers=needs_answers([builtin]))


@pytest.mark.parametrize(
    ("task", "num_prompts", "first", "last"),
    [("copy", 16, ("a=", "aaaa"), ("p=", "pppp")), ("reverse", 64, ("aaa=", "aaa"), ("ddd=", "ddd"))],
)
def test_the_built_in_tasks_have_their_prompts_and_answers(
    task: str, num_prompts: int, first: tuple[str, str], last: tuple[str, str]
) -> None:
    prompts = load(f"builtin://{task}")
    assert len(prompts) == num_prompts
    assert (prompts[0].content, prompts[0].columns["answer"]) == first
    assert (prompts[-1].content, prompts[-1].columns["answer"]) == last


def test_the_answers_of_the_add_task_are_the_sums() -> None:
    prompts = load("builtin://add")
    assert len(prompts) == 55
    for prompt in prompts:
        left, right = prompt.content.rstrip("=").split("+")
        assert prompt.columns["answer"] == str(int(left) + int(right))


def test_a_jsonl_file_gives_its_columns_by_their_own_names(tmp_path: Path) -> None:
    source = write(
        tmp_path / "data.jsonl",
        {"question": "1+1?", "gold": 2, "level": "easy"},
        {"question": "2+2?", "gold": 4},
    )
    prompts = load(source, prompt="question", answer="gold")
    assert [prompt.content for prompt in prompts] == ["1+1?", "2+2?"]
    assert [prompt.columns for prompt in prompts] == [
        {"gold": 2, "level": "easy"},
        {"gold": 4, "level": None},
    ]
    assert [prompt.index for prompt in prompts] == [0, 1]


def test_a_file_without_answers_is_fine_unless_a_reward_needs_them(tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", {"prompt": "hello"})
    assert load(source, builtin="format")[0].columns == {}
    with pytest.raises(UserError, match=r"dataset\.answer \(answer\) is not a column of .*: it has prompt"):
        load(source)


def test_a_missing_prompt_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", {"question": "1+1?", "answer": "2"})
    with pytest.raises(UserError, match=r"dataset\.prompt \(prompt\) .* it has answer, question"):
        load(source)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ('{"prompt": "a", "answer": "b"}\nnot json', "line 2 is not JSON"),
        ("[1, 2]", "line 1 is a list"),
        ('{"prompt": 7, "answer": "b"}', "row 1 of the dataset has no usable prompt"),
        ('{"prompt": [], "answer": "b"}', "row 1 of the dataset has no usable prompt"),
        ('{"prompt": "a", "answer": "b"}\n{"answer": "b"}', "row 2 of the dataset has no usable prompt"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(UserError) as refusal:
        load(f"file://{tmp_path}/data.jsonl")
    assert sentence in str(refusal.value)


def test_a_missing_file_is_refused_with_the_files_there_are(tmp_path: Path) -> None:
    (tmp_path / "claims" / "data").mkdir(parents=True)
    write(tmp_path / "claims" / "data" / "train.jsonl", {"prompt": "a", "answer": "b"})
    with pytest.raises(UserError) as refusal:
        load("pvc://data/trian.jsonl", volumes_dir=tmp_path)
    assert str(refusal.value) == (
        "dataset.source (pvc://data/trian.jsonl): there is no file trian.jsonl on claim data, which has "
        "train.jsonl there"
    )
    with pytest.raises(UserError, match=r"no file /nowhere/data\.jsonl in this container's image"):
        load("file:///nowhere/data.jsonl")


@pytest.mark.parametrize("source", ["pvc://data/sub/train.jsonl", "configmap://data/train.jsonl"])
def test_a_file_on_a_volume_is_read_from_where_the_pod_mounts_it(tmp_path: Path, source: str) -> None:
    scheme, _, rest = source.partition("://")
    path = tmp_path / {"pvc": "claims", "configmap": "configmaps"}[scheme] / rest
    path.parent.mkdir(parents=True)
    write(path, {"prompt": "a", "answer": "b"})
    assert load(source, volumes_dir=tmp_path)[0].content == "a"


def test_a_path_that_leaves_its_claim_is_refused(tmp_path: Path) -> None:
    # a spec with such a path is refused before; this is behind it
    source = parse_source("pvc://data/../../etc/train.jsonl")
    with pytest.raises(UserError, match=r"^dataset\.source: .* leaves the volume data: remove '\.\.'"):
        path_of(source, volumes_dir=tmp_path, field="dataset.source")


def test_a_file_url_may_be_percent_encoded(tmp_path: Path) -> None:
    write(tmp_path / "my data.jsonl", {"prompt": "a", "answer": "b"})
    assert load(f"file://{tmp_path}/my%20data.jsonl")[0].content == "a"


def test_a_parquet_file_gives_the_same_prompts_as_the_lines_of_a_text_file(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "hi"}], "answer": "b", "tags": ["x"], "n": 3},
        {"prompt": [{"role": "user", "content": "ho"}], "answer": None, "tags": [], "n": None},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    assert load(f"file://{tmp_path}/data.parquet") == load(write(tmp_path / "data.jsonl", *rows))


def test_times_and_decimals_of_a_parquet_file_reach_rewards_as_text(tmp_path: Path) -> None:
    row = {"prompt": "a", "answer": decimal.Decimal("1.50"), "day": datetime.date(2026, 1, 2)}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "data.parquet")
    assert load(f"file://{tmp_path}/data.parquet")[0].columns == {"answer": "1.50", "day": "2026-01-02"}


def test_a_column_that_reward_functions_cannot_get_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "b", "picture": b"\x89PNG"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    with pytest.raises(UserError, match="row 1 of the dataset has a bytes in column picture"):
        load(f"file://{tmp_path}/data.parquet")


def test_a_parquet_file_with_other_content_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_text("not parquet at all")
    with pytest.raises(UserError, match="is not a Parquet file"):
        load(f"file://{tmp_path}/data.parquet")


def test_a_file_that_is_not_utf_8_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(UserError, match="not UTF-8"):
        load(f"file://{tmp_path}/data.jsonl")


def prompt(content: Any) -> Prompt:
    return Prompt(index=4, content=content, columns={})


def test_a_text_prompt_becomes_its_tokens() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    token_ids = encode_prompt(prompt("3+5="), tokenizer=tokenizer, max_prompt_tokens=4)
    assert tokenizer.decode(token_ids) == "3+5="


def test_a_chat_goes_through_the_models_template() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[go]{% endif %}"
    )
    token_ids = encode_prompt(
        prompt([{"role": "user", "content": "hi"}]), tokenizer=tokenizer, max_prompt_tokens=64
    )
    assert tokenizer.decode(token_ids) == "[user]hi[go]"


def test_a_message_in_several_texts_is_their_text() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = "[{{ messages[0].content | trim }}]"
    parts = [{"type": "text", "text": "hi "}, {"type": "text", "text": "you"}]
    token_ids = encode_prompt(
        prompt([{"role": "user", "content": parts}]), tokenizer=tokenizer, max_prompt_tokens=64
    )
    assert tokenizer.decode(token_ids) == "[hi you]"


def test_a_message_without_text_that_the_template_joins_names_its_row() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = "{{ 'user: ' + messages[0].content }}"
    with pytest.raises(UserError, match=r"^row 5 .* refuses \(can only concatenate str"):
        encode_prompt(prompt([{"role": "user", "content": None}]), tokenizer=tokenizer, max_prompt_tokens=64)


def test_a_chat_that_the_template_refuses_names_its_row() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = "{{ raise_exception('no system messages, please') }}"
    with pytest.raises(UserError, match=r"^row 5 .* refuses \(no system messages, please\)"):
        encode_prompt(
            prompt([{"role": "system", "content": "hi"}]), tokenizer=tokenizer, max_prompt_tokens=64
        )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "without any token"),
        ("12345", "5 tokens but .* leaves 4: raise engine.maxModelLen"),
        ([{"role": "user", "content": "hi"}], "has no chat template"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_with_its_row(content: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^row 5 of the dataset.*{sentence}"):
        encode_prompt(prompt(content), tokenizer=char_tokenizer(max_length_tokens=64), max_prompt_tokens=4)


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}[quick]{% endif %}"
)


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ("hi", ChatOptions(is_applied_to_text=True), "[user]hi"),
        ("hi", ChatOptions(is_applied_to_text=True, system_prompt="Sum."), "[system]Sum.[user]hi"),
        ([{"role": "user", "content": "hi"}], ChatOptions(system_prompt="Sum."), "[system]Sum.[user]hi"),
        ([{"role": "system", "content": "own"}], ChatOptions(system_prompt="Sum."), "[system]own"),
        (
            "hi",
            ChatOptions(is_applied_to_text=True, arguments={"enable_thinking": False}),
            "[user]hi[quick]",
        ),
        (
            "hi",
            ChatOptions(is_applied_to_text=True, template="<{{ messages[0].content }}>"),
            "<hi>",
        ),
        ("hi", ChatOptions(), "hi"),
    ],
)
def test_a_prompt_is_the_text_that_the_chat_options_ask_for(
    content: Any, options: ChatOptions, text: str
) -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    tokenizer.chat_template = TEMPLATE
    token_ids = encode_prompt(
        prompt(content), tokenizer=tokenizer, max_prompt_tokens=64, chat_options=options
    )
    assert tokenizer.decode(token_ids) == text


def test_a_template_of_the_job_serves_a_tokenizer_that_has_none() -> None:
    tokenizer = char_tokenizer(max_length_tokens=64)
    options = ChatOptions(is_applied_to_text=True, template="<{{ messages[0].content }}>")
    token_ids = encode_prompt(prompt("hi"), tokenizer=tokenizer, max_prompt_tokens=64, chat_options=options)
    assert tokenizer.decode(token_ids) == "<hi>"


def test_a_text_that_options_of_a_chat_are_meant_for_is_refused() -> None:
    options = ChatOptions(system_prompt="Sum.", needed_by="systemPrompt")
    with pytest.raises(UserError, match=r"^row 5 .* set sampling.applyChatTemplate .* sampling.systemPrompt"):
        encode_prompt(
            prompt("hi"),
            tokenizer=char_tokenizer(max_length_tokens=64),
            max_prompt_tokens=64,
            chat_options=options,
        )
