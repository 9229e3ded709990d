"""What release 0.1.0 wrote, put aside in the folder 0.1.0: objects of the API server and files of a run.

These files are never regenerated. They were written once by the operator and the trainer of that release, and
every later release has to read them: a job that is running when its operator is upgraded goes on, and a run
whose image is upgraded resumes from its checkpoint. A test here that fails has found users who would lose
work. When a later release writes something new, its files become a folder of their own beside this one.

`kubernetes/NAME.json` has a GRPOJob as the API server holds it and its children, `runtime/` what a trainer
leaves on its claim, in its run directory and in its termination log, `runtime/local-run` what
`grpo-runtime run` leaves.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RELEASE = Path(__file__).parent / "0.1.0"
OBJECTS = RELEASE / "kubernetes"
RUNTIME = RELEASE / "runtime"
JOB_UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def cluster(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A GRPOJob and its children, as a list request returns them."""
    stored = json.loads((OBJECTS / f"{name}.json").read_text())
    return stored["job"], stored["children"]


def config_map(name: str) -> dict[str, Any]:
    """The ConfigMap of a job."""
    (found,) = (child for child in cluster(name)[1] if child["kind"] == "ConfigMap")
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything below `value` that is neither an object nor a list; empty ones too."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def lost(before: Any, after: Any) -> dict[str, Any]:
    """What is in `before` but not, or with another value, in `after`; a release may add fields."""
    kept = dict(leaves(after))
    return {path: value for path, value in leaves(before) if path not in kept or kept[path] != value}
