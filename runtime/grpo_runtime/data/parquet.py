"""Rows of a Parquet file."""

from pathlib import Path
from typing import Any

from grpo_runtime.data.values import shorten_floats
from grpo_runtime.errors import UserError


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
