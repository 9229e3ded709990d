"""Datasets of the Hub: from a fake Hub on this machine, and from a cache alone."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from data_runs import dataset_run
from fake_hub import COMMIT, FakeHub, fill_cache, serving, use_cache, use_hub

from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.source import load_prompts
from grpo_runtime.errors import UserError

CARD = b"""---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# A card
"""


def parquet(path: Path, *questions: str) -> bytes:
    rows = [{"question": question, "answer": f"#### {len(question)}"} for question in questions]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path.read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A dataset as gsm8k is laid out: two subsets, one of them with two splits."""
    return {
        "README.md": CARD,
        "main/train-00000-of-00001.parquet": parquet(tmp_path / "a", "one", "three"),
        "main/test-00000-of-00001.parquet": parquet(tmp_path / "b", "test"),
        "socratic/train-00000-of-00001.parquet": parquet(tmp_path / "c", "why"),
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub."""
    return use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def hub(files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub({("dataset", "org/maths"): files}, gated=frozenset({"org/gated"}))
    with serving(fake) as endpoint:
        use_hub(endpoint, monkeypatch)
        yield fake


def load(name: str, *, is_offline: bool = False, **dataset: Any) -> tuple[Prompt, ...]:
    columns = {"prompt": "question", **dataset}
    run = dataset_run(f"hf://{name}", builtin="math_verify", hub={"offline": is_offline}, **columns)
    return load_prompts(run, volumes_dir=Path("/nowhere"), needs_answers=True)


def questions(prompts: tuple[Prompt, ...]) -> list[Any]:
    return [prompt.content for prompt in prompts]


def test_subset_and_split_are_those_of_the_spec_and_no_other_subset_is_downloaded(hub: FakeHub) -> None:
    assert questions(load("org/maths", subset="main")) == ["one", "three"]
    assert questions(load("org/maths", subset="main", split="test")) == ["test"]
    assert not [path for path in hub.asked if "socratic" in path]


def test_a_downloaded_dataset_is_read_offline_without_asking_the_hub(hub: FakeHub) -> None:
    online = load("org/maths", subset="main")
    num_asked = len(hub.asked)
    assert load("org/maths", subset="main", is_offline=True) == online
    assert len(hub.asked) == num_asked


def test_a_cache_that_another_process_filled_is_read_at_the_right_revision(
    cache: Path, files: Mapping[str, bytes], tmp_path: Path
) -> None:
    older = {**files, "main/train-00000-of-00001.parquet": parquet(tmp_path / "d", "old")}
    fill_cache(cache, "dataset", "org/maths", files)
    fill_cache(cache, "dataset", "org/maths", older, commit="f" * 40, ref="v1")
    assert questions(load("org/maths", subset="main", is_offline=True)) == ["one", "three"]
    assert questions(load("org/maths", subset="main", revision="v1", is_offline=True)) == ["old"]
    assert questions(load("org/maths", subset="main", revision=COMMIT, is_offline=True)) == ["one", "three"]


def test_a_number_of_a_narrow_float_is_the_one_that_was_written(cache: Path, tmp_path: Path) -> None:
    columns = {
        "question": ["a"],
        "answer": pyarrow.array([0.1], pyarrow.float32()),
        "accepted": pyarrow.array([[0.1]], pyarrow.list_(pyarrow.float32())),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    fill_cache(cache, "dataset", "org/floats", {"train.parquet": (tmp_path / "data.parquet").read_bytes()})
    [prompt] = load("org/floats", is_offline=True)
    assert prompt.columns == {"answer": 0.1, "accepted": [0.1]}


def test_a_dataset_without_a_card_is_one_jsonl_file(cache: Path) -> None:
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    fill_cache(cache, "dataset", "org/plain", {"train.jsonl": content})
    assert questions(load("org/plain", is_offline=True)) == ["a", "b"]


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (
            {"subset": "Main"},
            "dataset.subset (Main) is not a subset of hf://org/maths: it has main, socratic",
        ),
        ({}, "dataset.subset must be set for hf://org/maths: it has main, socratic"),
        (
            {"subset": "main", "split": "validation"},
            "dataset.split (validation) is not a split of hf://org/maths: it has train, test",
        ),
        (
            {"subset": "main", "prompt": "problem"},
            "dataset.prompt (problem) is not a column of hf://org/maths: it has answer, question",
        ),
        (
            {"subset": "main", "revision": "v9"},
            "dataset.revision (v9) is no branch, tag or commit of hf://org/maths",
        ),
    ],
)
def test_a_field_that_does_not_fit_the_dataset_is_refused_with_what_fits(
    hub: FakeHub, dataset: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError) as refusal:
        load("org/maths", **dataset)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("org/nothing", "the Hub has no such dataset, or it is private: .* hub.tokenSecret"),
        ("org/gated", "is gated: ask for access .* hub.tokenSecret"),
    ],
)
def test_a_refusal_of_the_hub_says_what_to_do(hub: FakeHub, name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"^dataset\.source \(hf://{name}\).*{sentence}"):
        load(name)


def test_an_empty_cache_offline_says_how_to_fill_it(cache: Path) -> None:
    with pytest.raises(UserError, match=r"hf://org/maths\) is not in the cache .* hub\.offline is set"):
        load("org/maths", is_offline=True)
