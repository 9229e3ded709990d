"""`python tests/runtime/parity/check.py FILE...`: whether the product's own functions give TRL's numbers.

FILE has the format of the parity data: fixed inputs, and cases with TRL's options, loss, gradient and
metrics, or with its advantages. Cases of a file without inputs of its own are about those of the file before
it. Prints a line for each case. Exits with 1 when a number is not TRL's, or an option is unknown.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl_case import Miss, UnknownOptionError, misses

SHOWN = 3
"""Misses of a case that its line tells."""


def check(files: list[Path]) -> bool:
    """Print a line for each case of `files`: True when all are as TRL has them."""
    lines = list(_lines(files))
    for is_good, line in lines:
        print("ok  " if is_good else "MISS", line)
    num_good = sum(is_good for is_good, _ in lines)
    print(f"{num_good} of {len(lines)} cases are as TRL has them")
    return num_good == len(lines) > 0


def _lines(files: list[Path]) -> Iterator[tuple[bool, str]]:
    inputs: dict[str, Any] = {}
    for file in files:
        content = json.loads(file.read_text())
        inputs = content.get("inputs", inputs)
        for name, case in content["cases"].items():
            try:
                found = misses(inputs, case)
            except (UnknownOptionError, ValueError) as error:
                # a value that no function knows is a ValueError that names the option
                yield False, f"{file.name}: {name}: {error}"
            else:
                yield not found, f"{file.name}: {name}{_told(found)}"


def _told(found: list[Miss]) -> str:
    told = [str(miss) for miss in found[:SHOWN]]
    if len(found) > SHOWN:
        told.append(f"{len(found) - SHOWN} more")
    return f": {', '.join(told)}" if told else ""


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("which files? python tests/runtime/parity/check.py FILE...")
    sys.exit(0 if check([Path(name) for name in sys.argv[1:]]) else 1)
