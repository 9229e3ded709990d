"""`dataset.source`: from a URL in the spec to prompts."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from grpo_runtime.data.jsonl import read_jsonl
from grpo_runtime.data.prompt import Messages, Prompt
from grpo_runtime.data.tasks import TASKS
from grpo_runtime.errors import UserError


def load_prompts(
    source: str, *, prompt_column: str, answer_column: str, is_answer_required: bool
) -> tuple[Prompt, ...]:
    """Every prompt of the dataset named by `source`, in its own order; at least one.

    `builtin://copy|reverse|add` is a task, `file:///path.jsonl` a JSON Lines file. A column that some rows
    lack is None there. Raises UserError for a source that cannot be read, for one without rows, and for a
    missing column; a file without the answer column is fine unless `is_answer_required` (a built-in reward
    compares with it).
    """
    rows = _rows(source)
    if not rows:
        raise UserError(f"dataset.source ({source}) is empty: it needs at least one row")
    names = list(dict.fromkeys(name for row in rows for name in row))
    _require_column(prompt_column, names, field="dataset.prompt", source=source)
    if is_answer_required:
        _require_column(answer_column, names, field="dataset.answer", source=source)
    others = [name for name in names if name != prompt_column]
    return tuple(
        Prompt(
            index=index,
            content=_content(row.get(prompt_column), column=prompt_column, row=index + 1),
            columns={name: row.get(name) for name in others},
        )
        for index, row in enumerate(rows)
    )


def _rows(source: str) -> list[dict[str, Any]]:
    url = urlsplit(source)
    if url.scheme == "builtin":
        if url.netloc not in TASKS:
            known = ", ".join(f"builtin://{name}" for name in TASKS)
            raise UserError(f"dataset.source ({source}) names no built-in task: there are {known}")
        return [{"prompt": prompt, "answer": answer} for prompt, answer in TASKS[url.netloc]()]
    if url.scheme == "file" and not url.netloc and url.path.endswith(".jsonl"):
        return read_jsonl(Path(unquote(url.path)))
    raise UserError(f"dataset.source ({source}) is not understood: use file:///path.jsonl or builtin://copy")


def _require_column(name: str, names: list[str], *, field: str, source: str) -> None:
    if name not in names:
        raise UserError(f"{field} ({name}) is not a column of {source}: it has {', '.join(sorted(names))}")


def _content(value: Any, *, column: str, row: int) -> str | Messages:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return value
    raise UserError(
        f"row {row} of the dataset has no usable prompt in column {column}: it must be text, or a list of "
        "messages with role and content"
    )


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item
