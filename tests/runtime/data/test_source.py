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
from grpo_api.v1alpha1.spec import EnvironmentSpec
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.source import load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.rewards.builtin import needs_answers
from grpo_runtime.storage.paths import path_of


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


def test_the_numbers_have_no_answers() -> None:
    run = dataset_run("builtin://numbers")
    prompts = load_prompts(run, volumes_dir=Path("/nowhere"), needs_answers=False)
    assert [prompts[0].content, prompts[-1].content, len(prompts)] == ["0", "9999", 10_000]
    assert prompts[0].columns == {}
    with pytest.raises(UserError, match=r"dataset\.answer \(answer\) is not a column of builtin://numbers"):
        load("builtin://numbers")


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


@pytest.mark.parametrize("named", ["chess", None, 7])
def test_a_row_that_names_no_environment_is_refused_with_its_column(tmp_path: Path, named: object) -> None:
    rows = [{"prompt": "a", "answer": "b", "plays": name} for name in ("go", named)]
    source = write(tmp_path / "data.jsonl", *rows)
    run = dataset_run(source)
    dataset = run.dataset.model_copy(update={"environment": "plays"})
    environments = [EnvironmentSpec(name=name, function="a:b") for name in ("go", "poker")]
    run = run.model_copy(update={"dataset": dataset, "environments": environments})
    with pytest.raises(UserError, match=rf"row 2 .* has {named!r} in column plays, .*: it has go, poker"):
        load_prompts(run, volumes_dir=tmp_path, needs_answers=False)


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
        ('{"prompt": "a"}\n' + "1" * 5000, "line 2 cannot be read: Exceeds the limit (4300 digits)"),
        ("[" * 99999, "line 1 cannot be read: maximum recursion depth exceeded"),
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
    assert load(f"file://{tmp_path}/data.parquet")[0].columns == {"answer": "1.5", "day": "2026-01-02"}


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (datetime.date(2026, 1, 2), "a date (2026-01-02)"),
        (datetime.datetime(2026, 1, 2, 3), "a datetime (2026-01-02 03:00:00)"),
        (datetime.time(3), "a time (03:00:00)"),
        (datetime.timedelta(hours=1), "a timedelta (1:00:00)"),
        ([datetime.date(2026, 1, 2)], "a date (2026-01-02)"),
    ],
)
def test_a_time_is_no_answer(tmp_path: Path, answer: Any, what: str) -> None:
    rows = [{"prompt": "a", "answer": None}, {"prompt": "a", "answer": answer}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    with pytest.raises(UserError) as refusal:
        load(f"file://{tmp_path}/data.parquet")
    assert f"dataset.answer: column answer of row 2 is {what}: write the text" in str(refusal.value)
    assert len(load(f"file://{tmp_path}/data.parquet", builtin="format")) == 2


@pytest.mark.parametrize("float_type", [pyarrow.float16(), pyarrow.float32()])
def test_numbers_of_narrow_floats_are_the_ones_that_were_written(tmp_path: Path, float_type: Any) -> None:
    columns = {
        "prompt": ["a", "b"],
        "answer": pyarrow.array([0.1, None], float_type),
        "accepted": pyarrow.array([[0.1, 2.5], []], pyarrow.list_(float_type)),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    first, second = load(f"file://{tmp_path}/data.parquet")
    assert first.columns == {"answer": 0.1, "accepted": [0.1, 2.5]}
    assert second.columns == {"answer": None, "accepted": []}


def test_a_column_that_reward_functions_cannot_get_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "b", "picture": b"\x89PNG"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    with pytest.raises(UserError, match="row 1 of the dataset has a bytes in column picture"):
        load(f"file://{tmp_path}/data.parquet")


def test_a_parquet_file_with_other_content_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_text("not parquet at all")
    with pytest.raises(UserError, match="is not a Parquet file"):
        load(f"file://{tmp_path}/data.parquet")


def test_a_file_as_windows_programs_write_it_is_read(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "ä"}, {"prompt": "b", "answer": "b"}]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "data.jsonl").write_bytes(lines.encode("utf-8-sig"))
    assert load(f"file://{tmp_path}/data.jsonl") == load(write(tmp_path / "plain.jsonl", *rows))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"prompt": "ok\ud83d", "answer": "b"}, "prompt"),
        ({"prompt": [{"role": "user", "content": "ok\ud83d"}], "answer": "b"}, "prompt"),
        ({"prompt": "a", "answer": ["ok\udc00"]}, "answer"),
        ({"prompt": "a", "answer": "b", "more": {"ok\ud83d": 1}}, "more"),
    ],
)
def test_a_text_that_is_cut_in_the_middle_of_a_character_is_refused_with_its_row(
    tmp_path: Path, row: dict[str, Any], column: str
) -> None:
    source = write(tmp_path / "data.jsonl", {"prompt": "a", "answer": "b"}, row)
    sentence = rf"^row 2 of the dataset has half of a character \(\\u.*\) in column {column}, at character 3 "
    with pytest.raises(UserError, match=sentence):
        load(source)


def test_keys_that_a_message_has_as_null_are_not_there_for_a_template(tmp_path: Path) -> None:
    """Parquet gives every struct of a column the keys of all."""
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
    ]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"prompt": chat, "answer": "2"}]), tmp_path / "data.parquet"
    )
    assert load(f"file://{tmp_path}/data.parquet")[0].content == chat
    with_nulls = [{"tool_calls": None, "name": None, **message} for message in chat]
    source = write(tmp_path / "data.jsonl", {"prompt": with_nulls, "answer": "2"})
    assert load(source)[0].content == chat


def test_an_argument_of_a_tool_that_is_null_in_a_line_of_json_stays_null(tmp_path: Path) -> None:
    call = {"function": {"name": "find", "arguments": {"limit": None}}}
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    source = write(tmp_path / "data.jsonl", {"prompt": chat, "answer": "2"})
    assert load(source)[0].content == chat


def test_a_file_that_is_not_utf_8_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(UserError, match="not UTF-8"):
        load(f"file://{tmp_path}/data.jsonl")
