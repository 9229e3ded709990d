"""Values of dataset columns in the form of JSON, in which they reach reward functions."""

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_runtime.errors import UserError


def plain(value: Any, *, column: str, row: int) -> Any:
    """`value` as text, number, bool, None, list or dict with text keys.

    Times become ISO 8601 text, and decimals become text without zeros at their end. Raises UserError for a
    value that JSON cannot hold, such as a picture or bytes, and for text that is cut in the middle of a
    character.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {
            _whole(str(name), column=column, row=row): plain(item, column=column, row=row)
            for name, item in value.items()
        }
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), column=column, row=row)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [plain(item, column=column, row=row) for item in items]
    text = _text_of(value)
    if text is None:
        raise UserError(
            f"row {row} of the dataset has a {type(value).__name__} in column {column}, which cannot be "
            "given to reward functions: remove the column or make it text"
        )
    return _whole(text, column=column, row=row)


def shorten_floats(rows: Sequence[dict[str, Any]], dtypes: Mapping[str, str]) -> None:
    """Let each number in these columns be the float with the shortest text that means the same as its dtype,
    float16 or float32: 0.1, and not 0.10000000149011612. Lists of numbers too."""
    for name, dtype in dtypes.items():
        float_type = np.dtype(dtype).type
        for row in rows:
            row[name] = _shortest(row[name], float_type=float_type)


def _shortest(value: Any, *, float_type: Callable[[float], Any]) -> Any:
    if isinstance(value, list):
        return [_shortest(item, float_type=float_type) for item in value]
    return None if value is None else float(str(float_type(value)))


def _text_of(value: Any) -> str | None:
    """A text, a time or a decimal as text; None for anything else."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return f"{value.normalize():f}"
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value if isinstance(value, str) else None


def _whole(text: str, *, column: str, row: int) -> str:
    """Text that can be encoded. Scraped JSON may have one half of a pair of surrogates, as of an emoji."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(
            f"row {row} of the dataset has half of a character ({half}) in column {column}, at character "
            f"{error.start + 1} of the text: repair it or remove the row"
        ) from error
    return text
