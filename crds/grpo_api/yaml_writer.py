"""Writes plain data as YAML, always as the same text, with the standard library only."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

# Some YAML parsers read words such as `on` and `null` as something other than a string.
_PLAIN_KEY = re.compile(r"(?!(?:y|n|on|off|yes|no|true|false|null)$)[A-Za-z$][A-Za-z0-9_./-]*", re.IGNORECASE)

_MAX_FLOW = 100


def write_yaml(value: Any) -> str:
    """`value` in block style, short maps and lists inline. Every string is in double quotes, and floats have
    no exponents."""
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
    if flow := _flow(value):
        yield f"{prefix} {flow}"
    elif isinstance(value, dict | list) and value:
        yield prefix
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{prefix} {_scalar(value)}"


def _flow(value: Any) -> str:
    """A map or list in one line; '' unless it is a map or list that fits."""
    if not isinstance(value, dict | list) or not value:
        return ""
    parts: list[str] = []
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        text = _flow(item) if isinstance(item, dict | list) and item else _scalar(item)
        if not text:
            return ""
        parts.append(text if key is None else f"{_key(key)}: {text}")
    line = ", ".join(parts)
    line = f"{{{line}}}" if isinstance(value, dict) else f"[{line}]"
    return line if len(line) <= _MAX_FLOW else ""


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _scalar(key)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 reads 1e-06 as a string, and a number without a point as an integer
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    return json.dumps(value, ensure_ascii=False)
