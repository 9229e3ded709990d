"""Rows of a dataset in a file: JSON Lines, which has one object in each line, or Parquet."""

import json
from pathlib import Path
from typing import Any

from grpo_runtime.data.values import shorten_floats
from grpo_runtime.errors import UserError


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of the file, in order, without empty lines.

    Raises UserError with the number of the line that is wrong, and OSError when the file cannot be read.
    """
    rows = []
    try:
        # some programs write a byte order mark at the beginning
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    rows.append(_row(line, where=f"{path}, line {number}"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"dataset.source: {path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    return rows


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """The rows of the file, in order.

    Raises UserError when it is not a Parquet file, and OSError when it cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise UserError(f"dataset.source: {path} is not a Parquet file that can be read: {error}") from error
    dtypes = {pyarrow.float16(): "float16", pyarrow.float32(): "float32"}
    item_types = {
        column.name: column.type.value_type if pyarrow.types.is_list(column.type) else column.type
        for column in table.schema
    }
    shorten_floats(rows, {name: dtypes[found] for name, found in item_types.items() if found in dtypes})
    return rows


READERS = {".jsonl": read_jsonl, ".parquet": read_parquet}
"""Readers by the suffix of a file's name."""


def _row(line: str, *, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"dataset.source: {where} is not JSON: {error.msg} at column {error.colno}"
        ) from error
    except (ValueError, RecursionError) as error:
        # a number of more than 4300 digits, and lists in lists in lists
        raise UserError(
            f"dataset.source: {where} cannot be read: {error}: shorten it or remove it"
        ) from error
    if not isinstance(row, dict):
        raise UserError(f"dataset.source: {where} is a {type(row).__name__}, not an object with columns")
    return row
