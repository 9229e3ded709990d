"""Kubernetes quantities ("64Mi", "1500m", 2): a field type, and the numbers they stand for."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]{1,2}))?$"
"""Non-negative quantities as the Kubernetes API accepts them, with exponents of at most two digits."""

_SCALE = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


def parse_quantity(text: str | int) -> Decimal:
    """The number a quantity stands for, in its base unit (bytes, cores, devices).

    Raises ValueError naming the text when it is not a non-negative quantity.
    """
    text = str(text)
    if not is_quantity(text):
        raise ValueError(f"{text!r} is not a quantity: write a number with an optional suffix, such as 64Mi")
    number, suffix = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(.*)", text).groups()  # type: ignore[union-attr]
    return Decimal(number) * _SCALE[suffix]


def is_quantity(text: str | int) -> bool:
    """Whether a text or a number is a non-negative quantity."""
    return re.fullmatch(QUANTITY_PATTERN, str(text)) is not None


DEVICE_COUNT_PATTERN = "^[0-9]{1,4}$"


def is_device_count(text: str | int) -> bool:
    """Whether the quantity is a whole number without a unit, as a number of devices has to be."""
    return re.fullmatch(DEVICE_COUNT_PATTERN, str(text)) is not None


def _check_quantity(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PydanticCustomError("int_or_string_type", "a quantity is a number or a string such as 64Mi")
    if isinstance(value, int):
        if value < 0:
            raise PydanticKnownError("greater_than_equal", {"ge": 0})
        return value
    if len(value) > MAX_LENGTH:
        raise PydanticKnownError("string_too_long", {"max_length": MAX_LENGTH})
    return value


MAX_LENGTH = 32

Quantity = Annotated[
    str | int,
    PlainValidator(_check_quantity, json_schema_input_type=str | int),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": MAX_LENGTH,
            "minimum": 0,
        }
    ),
]
"""A Kubernetes quantity: "64Mi", "1500m" or a plain number. A rule of the model that has it refuses a text
that is none, with a sentence: the API server would answer a pattern here with the pattern itself."""
