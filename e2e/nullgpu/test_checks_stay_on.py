"""No check of the product can be turned off for a GPU that is none, and nothing of the product knows of what
computes there; only tests load it.

`weightSync.verify` is a field of the spec by design, which is true unless a job says otherwise."""

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpo_nullgpu.machine import MIRROR
from pydantic import BaseModel
from test_job_failures import COLOCATED, DISAGGREGATED, TOO_LARGE
from test_jobs import JOBS

from grpo_api.contract.environment import Env
from grpo_api.v1alpha1.spec import GRPOJobSpec

ROOT = Path(__file__).parents[2]
PRODUCT = ("crds", "operator", "runtime", "charts", "examples", "e2e/images")
PACKAGES = ("crds/grpo_api", "operator/grpo_operator", "runtime/grpo_runtime")
FIELDS = {
    # a job's own choice, which says what it gives up: no job of this folder or of the examples makes it
    "weightSync.verify",
}
OPTIONS_AND_VARIABLES = {
    "--check": "of `python -m grpo_api.crd`, which then writes nothing",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "how torch finds GPUs: without a context in a process that forks",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "which no pod may set",
}
_ABOUT_CHECKS = re.compile(r"verif|compare|\bskip|\bprobe|\btrust|\binsecure", re.IGNORECASE)
_WORDS = {
    "verify",
    "check",
    "checks",
    "skip",
    "insecure",
    "unsafe",
    "ignore",
    "bypass",
    "trust",
    "probe",
    "tag",
}
_OPTION_OR_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|--[a-z][a-z0-9-]+")


@pytest.mark.parametrize(
    "job", [*JOBS.values(), DISAGGREGATED, COLOCATED, TOO_LARGE], ids=lambda job: job.example
)
def test_no_job_here_leaves_a_check_out(job: Any) -> None:
    assert job.run_config.weight_sync.verify


def test_one_field_of_the_spec_turns_a_check_off_and_it_is_on_unless_a_job_says_otherwise() -> None:
    switches = {
        name: field.default
        for name, field in fields_of(GRPOJobSpec)
        if is_bool(field.annotation) and _ABOUT_CHECKS.search(f"{name} {field.description}")
    }
    assert switches.keys() == FIELDS
    assert all(default is True for default in switches.values())


def test_no_option_or_variable_of_the_product_turns_a_check_off() -> None:
    found = {
        name for package in PACKAGES for path in (ROOT / package).rglob("*.py") for name in names_in(path)
    }
    assert found >= {Env.RUN_CONFIG, "--output"}
    about_checks = {name for name in found if _WORDS & set(re.split("[-_]", name.lower()))}
    assert about_checks == OPTIONS_AND_VARIABLES.keys()


def test_nothing_of_the_product_knows_that_a_gpu_is_none_or_what_computes_there() -> None:
    own = "|".join(path.stem for path in MIRROR.glob("*_mirror.py"))
    knows = re.compile(f"null.?gpu|{own}", re.IGNORECASE)
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if is_source(path)]
    assert {path.name for path in files} >= {"cli.py", "pyproject.toml", "Chart.yaml"}
    assert [path for path in files if knows.search(path.read_text())] == []


def is_source(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    is_built = any(part.startswith(".") or part.endswith((".egg-info", "__pycache__")) for part in parts)
    return path.is_file() and not is_built


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All fields, by their paths."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        yield path, field
        for part in parts_of(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from fields_of(part, f"{path}.")


def parts_of(annotation: Any) -> Iterator[Any]:
    """A type, and those that it is made of."""
    yield annotation
    for part in typing.get_args(annotation):
        yield from parts_of(part)


def is_bool(annotation: Any) -> bool:
    return any(part is bool for part in parts_of(annotation))


def names_in(path: Path) -> Iterator[str]:
    """Whole strings in a module that look like an option or an environment variable."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _OPTION_OR_VARIABLE.fullmatch(node.value)
        ):
            yield node.value
