"""What the CRD lets nobody change once a job exists, and what `kubectl scale` reads and writes.

The rules are evaluated here as they stand in the CRD; tests/apiserver asks a real API server about them.
"""

import re
from copy import deepcopy
from typing import Any

import pytest

from grpo_api.crd import crd

VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]
SPEC = SCHEMA["spec"]
TRANSITIONS = [rule for rule in SPEC["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
SPLIT = ("rollout", "failurePolicy")
"""Sections of which some fields may change."""
LIVE = {
    "rollout.replicas",
    "failurePolicy.maxRestarts",
    "failurePolicy.rules",
    "suspend",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFailed",
    "ttlSecondsAfterFinished",
    "startupDeadlineSeconds",
    "schedulingDeadlineSeconds",
    "stallTimeoutSeconds",
}
"""All that may change while a job runs: a field that is new in the spec is snapshot, or is named here."""
FIELDS = sorted(
    path
    for section, schema in SPEC["properties"].items()
    for path in ([f"{section}.{name}" for name in schema["properties"]] if section in SPLIT else [section])
)


def evaluate(cel: str, *, new: dict[str, Any], old: dict[str, Any]) -> bool:
    """A rule in the part of CEL that transitions are written in: has, ==, !, && and ||. Lists are compared
    whole here, and their items on a real API server."""
    cel = cel.replace(".map(item, item.name)", "")
    python = cel.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    python = re.sub(r"has\(((?:oldSelf|self)[\w.]*)\.(\w+)\)", r"('\2' in \1)", python)
    python = re.sub(r"\b(self|oldSelf)((?:\.\w+)+)", lambda m: m[1] + _subscripts(m[2]), python)
    return bool(eval(python, {"__builtins__": {}}, {"self": new, "oldSelf": old}))  # noqa: S307 - our own rules


def _subscripts(path: str) -> str:
    return "".join(f"['{name}']" for name in path.strip(".").split("."))


def refused_fields(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Where the API server refuses to update `old` to `new`."""
    broken = [rule for rule in TRANSITIONS if not evaluate(rule["rule"], new=new, old=old)]
    return [rule["fieldPath"].removeprefix(".") for rule in broken]


@pytest.fixture
def stored() -> dict[str, Any]:
    """A spec that has every field; only whether values are equal matters."""
    fields: dict[str, Any] = {}
    for name, schema in SPEC["properties"].items():
        fields[name] = dict.fromkeys(schema["properties"], "old") if name in SPLIT else "old"
    return fields | {"suspend": False}


def changed(spec: dict[str, Any], path: str) -> dict[str, Any]:
    copy = deepcopy(spec)
    *sections, name = path.split(".")
    place = copy
    for section in sections:
        place = place[section]
    place[name] = "new"
    return copy


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_is_fixed_or_known_to_change(path: str, stored: dict[str, Any]):
    assert refused_fields(stored, stored) == []
    assert refused_fields(changed(stored, path), stored) == ([] if path in LIVE else [path])


def test_what_may_change_is_in_the_spec():
    assert set(FIELDS) >= LIVE


def can_be_absent(name: str) -> bool:
    """Whether a stored spec may lack this field: it is not required, and the API server fills nothing in."""
    return name not in SPEC["required"] and "default" not in SPEC["properties"][name]


@pytest.mark.parametrize(
    "name", [name for name in SPEC["properties"] if can_be_absent(name) and name not in LIVE]
)
def test_a_field_that_may_be_absent_is_neither_added_nor_taken_away(name: str, stored: dict[str, Any]):
    without = {key: value for key, value in stored.items() if key != name}
    assert refused_fields(without, stored) == [name]
    assert refused_fields(stored, without) == [name]


def test_the_queue_may_change_while_the_job_is_suspended(stored: dict[str, Any]):
    suspended = {**stored, "suspend": True}
    assert refused_fields(changed(suspended, "queueName"), suspended) == []
    without = {key: value for key, value in suspended.items() if key != "queueName"}
    assert refused_fields(without, suspended) == []
    assert refused_fields({**changed(stored, "queueName"), "suspend": False}, suspended) == ["queueName"]


def test_scaling_a_job_without_rollout_pods_is_refused(stored: dict[str, Any]):
    colocated = {key: value for key, value in stored.items() if key != "rollout"}
    # the scale subresource writes replicas alone
    assert refused_fields({**colocated, "rollout": {"replicas": 3}}, colocated) == ["rollout"]


def test_scale_reads_and_writes_the_number_of_rollout_pods():
    paths = VERSION["subresources"]["scale"]
    assert paths == {
        "specReplicasPath": ".spec.rollout.replicas",
        "statusReplicasPath": ".status.rollout.replicas",
        "labelSelectorPath": ".status.rollout.selector",
    }
    for path, kind in (
        (paths["specReplicasPath"], "integer"),
        (paths["statusReplicasPath"], "integer"),
        (paths["labelSelectorPath"], "string"),
    ):
        schema: dict[str, Any] = {"properties": SCHEMA}
        for name in path.strip(".").split("."):
            schema = schema["properties"][name]
        assert schema["type"] == kind


def test_status_is_a_subresource_of_its_own():
    assert VERSION["subresources"]["status"] == {}
