"""Rows of a JSON Lines file, which has one object in each line."""

import json
from pathlib import Path
from typing import Any

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
