"""Values of dataset columns in the form of JSON, in which they reach reward functions."""

import datetime
import decimal
from typing import Any

import numpy as np

from grpo_runtime.errors import UserError


def plain(value: Any, *, column: str, row: int) -> Any:
    """`value` as text, number, bool, None, list or dict with text keys.

    Times become ISO 8601 text, and decimals become text. Raises UserError for a value that JSON cannot hold,
    such as a picture or bytes.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): plain(item, column=column, row=row) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), column=column, row=row)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [plain(item, column=column, row=row) for item in items]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    raise UserError(
        f"row {row} of the dataset has a {type(value).__name__} in column {column}, which cannot be given to "
        "reward functions: remove the column or make it text"
    )
