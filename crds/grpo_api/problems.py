"""What is wrong with a GRPOJob, in the words of the API server.

A user reads the same message at `kubectl apply` and from `grpo-runtime validate`. A problem is the pair
(field, message) that the API server lists among the causes of a refusal. The API server stops at the first
kind of fault; here all are listed.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from grpo_api.v1alpha1.job import GRPOJob


@dataclass(frozen=True)
class Problem:
    """One fault. `field` is a path such as spec.rewards[0].name; `message` says what is wrong and how to fix
    it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def problems(job: Any) -> list[Problem]:
    """Everything wrong with a job given as plain data; empty when it is valid."""
    try:
        GRPOJob.from_object(job)
    except ValidationError as error:
        return problems_of(error)
    return []


def problems_of(error: ValidationError, *, at: str = "") -> list[Problem]:
    """The problems of a failed parse. `at` is the path of the parsed part, such as spec."""
    return [
        problem
        for details in error.errors(include_url=False)
        for problem in _translate(
            details["type"],
            _path((at, *details["loc"]) if at else details["loc"]),
            details["input"],
            details.get("ctx", {}) | {"msg": details["msg"]},
        )
    ]


def _translate(kind: str, path: str, value: Any, context: dict[str, Any]) -> list[Problem]:
    if kind == "rule":
        # where a rule is broken, the API server shows the type of the value and not the value
        return [
            Problem(f"{path}{field}".removeprefix("."), f'Invalid value: "{context["type"]}": {sentence}')
            for field, sentence in context["broken"]
        ]
    if kind == "duplicate":
        return [Problem(f"{path}[{context['index']}]", f"Duplicate value: {context['key']}")]
    if kind == "too_short" and len(value) >= context["min_length"]:
        # pydantic counts only valid items, and the invalid ones have problems of their own
        return []
    return [Problem(path, _message(kind, path, value, context))]


def _message(kind: str, path: str, value: Any, context: dict[str, Any]) -> str:
    if kind in _TYPES or (kind in _ENUMS and not isinstance(value, str)):
        wanted, given = _TYPES.get(kind, "string"), _json_type(value)
        return f'Invalid value: "{given}": {path} in body must be of type {wanted}: "{given}"'
    if kind in _WHOLE_MESSAGES:
        return _WHOLE_MESSAGES[kind](value, context)
    if kind in _BODIES:
        shown = len(value) if kind == "too_short" else value
        return f"Invalid value: {_show(shown)}: {path} in body {_BODIES[kind](value, context)}"
    return f'unknown field "{path}"' if kind == "extra_forbidden" else f"Invalid value: {context['msg']}"


_TYPES = {
    "int_type": "integer",
    "float_type": "number",
    "string_type": "string",
    "bool_type": "boolean",
    "model_type": "object",
    "dict_type": "object",
    "tuple_type": "array",
    "int_or_string_type": "integer,string",
}
_ENUMS = ("enum", "literal_error")


def _supported(value: Any, context: dict[str, Any]) -> str:
    names = re.findall(r"'([^']*)'", context["expected"])
    return f"Unsupported value: {_show(value)}: supported values: {', '.join(map(json.dumps, names))}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_Sentence = Callable[[Any, dict[str, Any]], str]

_WHOLE_MESSAGES: dict[str, _Sentence] = {
    "missing": lambda _value, _context: "Required value",
    "enum": _supported,
    "literal_error": _supported,
    "string_too_long": lambda _value, context: (
        f"Too long: may not be more than {_plural(context['max_length'], 'byte')}"
    ),
    "too_long": lambda value, context: (
        f"Too many: {len(value)}: must have at most {_plural(context['max_length'], 'item')}"
    ),
}

_BODIES: dict[str, _Sentence] = {
    "string_pattern_mismatch": lambda _value, context: f"should match '{context['pattern']}'",
    "string_too_short": lambda _value, context: f"should be at least {context['min_length']} chars long",
    "too_short": lambda _value, context: f"should have at least {context['min_length']} items",
    "greater_than": lambda value, context: f"should be greater than {_bound(context['gt'], value)}",
    "greater_than_equal": lambda value, context: (
        f"should be greater than or equal to {_bound(context['ge'], value)}"
    ),
    "less_than": lambda value, context: f"should be less than {_bound(context['lt'], value)}",
    "less_than_equal": lambda value, context: (
        f"should be less than or equal to {_bound(context['le'], value)}"
    ),
}


def _path(location: tuple[int | str, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _json_type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _bound(bound: float, value: float) -> str:
    """The API server prints a bound as a whole number when the value it refuses is one."""
    return _show(int(bound) if isinstance(value, int) else float(bound))


def _show(value: Any) -> str:
    """A value as Go prints it."""
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    number = Decimal(repr(value)).normalize()
    if -4 <= number.adjusted() < 6:
        return format(number, "f")
    mantissa, exponent = format(number, "e").split("e")
    return f"{mantissa}e{int(exponent):+03d}"
