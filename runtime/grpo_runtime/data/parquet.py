"""Rows of a Parquet file."""

from pathlib import Path
from typing import Any

from grpo_runtime.errors import UserError


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """The rows of the file, in order.

    Raises UserError when it is not a Parquet file, and OSError when it cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise UserError(f"dataset.source: {path} is not a Parquet file that can be read: {error}") from error
    return rows
