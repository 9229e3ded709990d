"""Writes plain data as YAML, always as the same text, with the standard library only."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

# Some YAML parsers read words such as `on` and `null` as something other than a string.
_PLAIN_KEY = re.compile(r"(?!(?:y|n|on|off|yes|no|true|false|null)$)[A-Za-z$][A-Za-z0-9_./-]*", re.IGNORECASE)


def write_yaml(value: Any) -> str:
    """`value` in block style, with every string in double quotes and floats without exponents."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_key(key)}:", item)
    elif isinstance(value, list) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield prefix
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{prefix} {_scalar(value)}"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _scalar(key)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 reads 1e-06 as a string, and a number without a point as an integer
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    return json.dumps(value, ensure_ascii=False)
