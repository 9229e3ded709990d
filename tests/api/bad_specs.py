"""The table of bad_specs.yaml, and broken values for every bound that the schema of the spec states."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_api.rule import VALIDATIONS

KubeObject = dict[str, Any]
Step = str | int

_TABLE = yaml.safe_load(Path(__file__).with_name("bad_specs.yaml").read_text())
BASE: KubeObject = _TABLE["base"]


@dataclass(frozen=True)
class Case:
    """A changed base; `field` and `message` are empty where it is valid."""

    what: str
    job: KubeObject
    field: str = ""
    message: str = ""


def merged(base: KubeObject, change: KubeObject) -> KubeObject:
    """A merge patch, except that a null for what the base lacks stays, for the API server to judge."""
    result = dict(base)
    for key, value in change.items():
        if isinstance(value, dict):
            result[key] = merged(result.get(key, {}), value)
        elif value is None and key in result:
            del result[key]
        else:
            result[key] = value
    return result


BAD = [Case(row["what"], merged(BASE, row["change"]), row["field"], row["message"]) for row in _TABLE["bad"]]
GOOD = [Case(row["what"], merged(BASE, row["change"])) for row in _TABLE["good"]]


_NO_ADAPTER = {"model": {"lora": None}, "trainer": {"strategy": "FSDP2", "deepspeed": None}}
_REF_SYNC = {"dynamicSampling": None, "kl": {"beta": 0.05, "refSync": {"everySteps": 64, "mix": 0.5}}}
_POD = ("spec", "trainer", "podTemplate")
_KEYS = {"optional": True, "defaultMode": 288, "items": [{"key": "a", "path": "a", "mode": 288}]}
_VOLUMES = {
    "configMap": {"name": "certs", **_KEYS},
    "secret": {"secretName": "keys", **_KEYS},
    "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"},
    "csi": {
        "driver": "vault",
        "readOnly": True,
        "fsType": "ext4",
        "volumeAttributes": {"a": "b"},
        "nodePublishSecretRef": {"name": "vault"},
    },
}


def _with_volume(source: KubeObject) -> KubeObject:
    settings = {
        "spec": {"volumes": [{"name": "own", **source}]},
        "container": {
            "volumeMounts": [{"name": "own", "mountPath": "/mnt/own", "subPath": "a", "readOnly": True}]
        },
    }
    return {"spec": {"trainer": {"podTemplate": settings}}}


_REWARDS = {
    "service": {"url": "http://judge", "headersSecret": "judge"},
    "model": {
        "source": "hf://org/judge",
        "revision": "main",
        "dtype": "float32",
        "batchSize": 8,
        "threads": 4,
    },
}
_TOOLS_CODE = {"name": "code", "key": "a.py", "function": "b"}
_SEARCH = {"name": "search", "url": "http://search"}
_TOOLS = {"function": "a:b", "mcpServers": [{"name": "shell", "command": ["python"], "perSession": True}]}
_OTHERWISE: dict[tuple[Step, ...], KubeObject] = {
    # a reward has one source only
    **{
        ("spec", "rewards", 0, source): merged(
            GOOD[-1].job, {"spec": {"rewards": [{"name": "own", source: reward}]}}
        )
        for source, reward in _REWARDS.items()
    },
    # the reference of an adapter stays
    ("spec", "algorithm", "kl", "refSync"): merged(
        GOOD[-1].job, {"spec": {**_NO_ADAPTER, "algorithm": _REF_SYNC}}
    ),
    # masks compare with the engine, whose tokens are then not cut off
    **{
        ("spec", "algorithm", mask): merged(
            GOOD[-1].job,
            {"spec": {"algorithm": {mask: {}}, "sampling": {"topP": None, "topK": None, "minP": None}}},
        )
        for mask in ("geometricMask", "trustRegionMask")
    },
    **{
        (*_POD, "spec", "volumes", 0, source): merged(GOOD[-1].job, _with_volume({source: volume}))
        for source, volume in _VOLUMES.items()
    },
    # what is refused is judged with the rest of the job
    **{
        (*_POD, part, field): merged(
            GOOD[-1].job, {"spec": {"trainer": {"podTemplate": {part: {field: [""]}}}}}
        )
        for part, field in (
            ("spec", "containers"),
            ("spec", "initContainers"),
            ("spec", "imagePullSecrets"),
            ("container", "command"),
            ("container", "args"),
        )
    },
    # weights travel in one way
    ("spec", "weightSync", "disk"): merged(
        GOOD[-1].job,
        {
            "spec": {
                "weightSync": {
                    "backend": "Disk",
                    "sparse": None,
                    "disk": {
                        "to": "s3://models/weights",
                        "keep": 4,
                        "secret": "store",
                        "endpoint": "https://minio.storage:9000",
                        "region": "eu-west-1",
                    },
                }
            }
        },
    ),
    # engines in pods of their own have no such section
    ("spec", "colocated"): next(case.job for case in GOOD if case.what == "engines as actors of Ray"),
    # a topology is required or preferred
    **{
        ("spec", "scheduling", "topology", group, kind): merged(
            GOOD[-1].job, {"spec": {"scheduling": {"topology": {group: {other: None, kind: "zone"}}}}}
        )
        for group, kind, other in (
            ("trainer", "preferred", "required"),
            ("engine", "required", "preferred"),
        )
    },
    # completions have one maker of one kind, which is in one place, and only then a row may name it
    **{
        ("spec", *more): merged(
            GOOD[-1].job,
            {
                "spec": {
                    "sampling": {"rolloutFunction": None, "toolCallParser": "hermes"},
                    "environments": [{"name": "game", "limits": {"seconds": 60}, **place}],
                    "dataset": {"environment": "plays"},
                }
            },
        )
        for more, place in (
            (("environments",), {"function": "a:b"}),
            (
                ("environments", 0, "configMap"),
                {"configMap": {"name": "code", "key": "a.py", "function": "b"}},
            ),
            (("environments", 0, "command"), {"command": ["python"]}),
            (("environments", 0, "tools"), {"tools": _TOOLS}),
            (("environments", 0, "tools", "configMap"), {"tools": {"configMap": _TOOLS_CODE}}),
            (("environments", 0, "tools", "mcpServers", 0, "url"), {"tools": {"mcpServers": [_SEARCH]}}),
            (("dataset", "environment"), {"function": "a:b"}),
        )
    },
    # a checkpoint has one place
    ("spec", "resumeFrom", "job"): merged(
        GOOD[-1].job, {"spec": {"resumeFrom": {"source": None, "job": "first"}}}
    ),
}
"""Jobs with what cannot be beside everything else, by its path."""


_SEEN_ELSEWHERE = (
    ("spec", "rollout", "podTemplate", "metadata"),
    ("spec", "rollout", "podTemplate", "spec"),
    ("spec", "rollout", "podTemplate", "container"),
    (*_POD, "spec", "affinity", "podAntiAffinity"),
)
"""Sections of the same models as others: the trainer's podTemplate, and podAffinity."""


def cases_of_every_bound(spec_schema: KubeObject) -> Iterator[Case]:
    """Every field of the spec with wrong types, values just outside of its bounds, and null (often right)."""
    for path, schema in _fields(("spec",), spec_schema):
        if any(path[: len(seen)] == seen for seen in _SEEN_ELSEWHERE):
            continue
        starts = (path[:length] for length in range(len(path), 0, -1))
        everything = next((_OTHERWISE[start] for start in starts if start in _OTHERWISE), GOOD[-1].job)
        for value in _values_outside(schema):
            yield Case(f"{path_text(path)}={str(value)[:30]}", _replaced(everything, path, value))
        if "properties" in schema:
            unknown = (*path, "unknownField")
            yield Case(path_text(unknown), _replaced(everything, unknown, 1))


def path_text(path: tuple[Step, ...]) -> str:
    return ".".join(map(str, path))


def _fields(path: tuple[Step, ...], schema: KubeObject) -> Iterator[tuple[tuple[Step, ...], KubeObject]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _fields((*path, name), field)
    if "items" in schema:
        yield from _fields((*path, 0), schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _fields((*path, "memory"), schema["additionalProperties"])


_WRONG_TYPES: dict[str | None, list[Any]] = {
    "integer": ["a", 1.5, True, [], {}],
    "number": ["a", True, {}],
    "string": [5, 1.5, True, [], {}],
    "boolean": ["true", 1],
    "object": ["a", 1, []],
    "array": ["a", 1, {}],
    None: [True, 1.5, [], {}],
}


def _values_outside(schema: KubeObject) -> Iterator[Any]:
    yield None
    yield from _WRONG_TYPES[schema.get("type")]
    if "minimum" in schema:
        yield schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1)
    if "maximum" in schema:
        yield schema["maximum"] + (0 if schema.get("exclusiveMaximum") else 1)
        if schema["type"] == "number":
            yield schema["maximum"] + 1.5
    if "enum" in schema:
        yield "nothing"
    if schema.get("x-kubernetes-int-or-string") or (schema.get("type") == "string" and VALIDATIONS in schema):
        yield from ("", "a b\n", "ä")
    if "maxLength" in schema:
        yield "0" * (schema["maxLength"] + 1)
    if "minLength" in schema:
        yield ""
    if "maxProperties" in schema:
        yield {f"example.com/r{i}": 1 for i in range(schema["maxProperties"] + 1)}
    if "minItems" in schema:
        yield []


def _replaced(job: KubeObject, path: tuple[Step, ...], value: Any) -> KubeObject:
    changed = copy.deepcopy(job)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed
