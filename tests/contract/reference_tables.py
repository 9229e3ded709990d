"""The tables of docs/reference.md that are generated from the code, and the one in operator/kubectl-grpo.

After an intended change: `make generate`, then read the diff.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_api.contract import environment
from grpo_api.contract.exit_codes import EXIT_POLICIES, ExitCode, exit_policy
from grpo_api.contract.progress import TrainerState
from grpo_api.contract.reasons import Reason
from grpo_api.contract.what_to_do import WHAT_TO_DO
from grpo_api.crd import crd
from grpo_api.v1alpha1.status import Phase
from grpo_operator.metrics import OperatorMetrics
from grpo_runtime.report.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference.md"
PLUGIN = ROOT / "operator" / "kubectl-grpo"
_IN_PLUGIN = (
    "# generated: what to do (by `make generate`, from crds/grpo_api/contract/what_to_do.py)\n",
    "# end\n",
)

Rows = list[tuple[str, ...]]


def exit_codes() -> Rows:
    """What each exit code means to the operator."""
    rows = [("code", "reason", "means", "then")]
    for code, policy in EXIT_POLICIES.items():
        after = "next attempt, counted" if policy.is_counted else "next attempt, not counted"
        after = after if policy.is_retried else "the job fails"
        if exit_policy(code, has_worked=True) != policy:
            after += "; once it has made a step: next attempt, counted"
        done = "the job is complete" if code == ExitCode.DONE else after
        rows.append((str(int(code)), f"`{policy.reason}`", policy.meaning, done))
    return rows


def reasons() -> Rows:
    """Every reason that the product gives itself."""
    meanings = docstrings(Reason)
    return [("reason", "means"), *((f"`{reason}`", meanings[reason.name]) for reason in Reason)]


def what_to_do() -> Rows:
    """What a person can do about a reason."""
    return [("reason", "what to do"), *((f"`{reason}`", text) for reason, text in WHAT_TO_DO.items())]


def variables() -> Rows:
    """The environment of both roles."""
    rows = [("variable", "trainer", "rollout", "value")]
    meanings = docstrings(environment.Env)
    for name in environment.Env:
        roles = (
            environment.TRAINER_ENV | environment.LIMITS_ENV | environment.LATER_TRAINER_ENV,
            environment.ROLLOUT_ENV | environment.NODE_OF_ENGINE_ENV,
        )
        rows.append((f"`{name}`", *("yes" if name in role else "" for role in roles), meanings[name.name]))
    return rows


def spec_fields() -> Rows:
    """Every field of the spec that holds a value, with its default as the API server fills it in."""
    version = crd()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return [("field", "default", "meaning"), *_fields(schema, "")]


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        here = f"{path}{name}"
        if part.get("type") == "array" and _is_ours(part["items"]):
            yield (f"`{here}[]`", "required" if name in required else "", one_line(part["description"]))
            yield from _fields(part["items"], f"{here}[].")
        elif _is_ours(part):
            yield from _fields(part, f"{here}.")
        else:
            default = f"`{_shown(part['default'])}`" if "default" in part else ""
            meaning = one_line(part.get("description", ""))
            yield (f"`{here}`", "required" if name in required else default, meaning)


def _is_ours(schema: dict[str, Any]) -> bool:
    """Whether a schema has fields that are described here; those of Kubernetes are described there."""
    return any("description" in part for part in schema.get("properties", {}).values())


def status_fields() -> Rows:
    """Every field of the status, also those of its parts."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return [("field", "meaning"), *_described(schema, "")]


def _described(schema: dict[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    for name, part in schema.get("properties", {}).items():
        is_list = part.get("type") == "array"
        here = f"{path}{name}{'[]' if is_list else ''}"
        yield (f"`{here}`", one_line(part.get("description", "")))
        yield from _described(part["items"] if is_list else part, f"{here}.")


def phases() -> Rows:
    """Phases and what the trainer says it does."""
    return [
        ("where", "values"),
        ("`status.phase`", ", ".join(f"`{phase}`" for phase in Phase)),
        ("`state` in /progress", ", ".join(f"`{state}`" for state in TrainerState)),
    ]


def metrics() -> Rows:
    """Every metric of a step."""
    return [("metric", "meaning"), *((f"`{name}`", meaning) for name, meaning in METRICS.items())]


def operator_metrics() -> Rows:
    """Every metric of the operator."""
    ends = {"counter": "_total", "info": "_info"}
    found = OperatorMetrics().registry.collect()
    rows = [(f"`{one.name}{ends.get(one.type, '')}`", one.type, one.documentation) for one in found]
    return [("metric", "type", "meaning"), *rows]


TABLES: dict[str, Callable[[], Rows]] = {
    "spec": spec_fields,
    "status": status_fields,
    "phases": phases,
    "reasons": reasons,
    "what to do": what_to_do,
    "exit codes": exit_codes,
    "environment": variables,
    "metrics": metrics,
    "operator metrics": operator_metrics,
}


def rewritten(page: str) -> str:
    """The page with every generated table as the code has it now."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE.name} has no place for {name}: add {begin} and {end}"
        page = f"{before}{begin}\n{markdown(rows())}\n{end}{rest.partition(end)[2]}"
    return page


def with_what_to_do(plugin: str) -> str:
    """The plug-in of kubectl with what it says to do about each reason, which it cannot import."""
    begin, end = _IN_PLUGIN
    before, found, rest = plugin.partition(begin)
    assert found, f"{PLUGIN.name} has no place for what to do: add {begin}{end}"
    rows = "".join(
        f"    {json.dumps(str(reason))}: {json.dumps(text)},\n" for reason, text in WHAT_TO_DO.items()
    )
    return f"{before}{begin}WHAT_TO_DO = {{\n{rows}}}\n{end}{rest.partition(end)[2]}"


def markdown(rows: Rows) -> str:
    """A table; the first row is its head."""
    head, *body = rows
    lines = [head, ("---",) * len(head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def docstrings(enum: type[Enum]) -> dict[str, str]:
    """Member -> the docstring under it, as one line."""
    (definition,) = ast.parse(inspect.getsource(enum)).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    meanings = {}
    for statement, following in pairwise(body):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(statement, ast.Assign) and is_text:
            meanings[ast.unparse(statement.targets[0])] = one_line(ast.literal_eval(following.value))
    return meanings


def one_line(text: str) -> str:
    """Text without its line breaks."""
    return re.sub(r"\s+", " ", text).strip()


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
    PLUGIN.write_text(with_what_to_do(PLUGIN.read_text()))
