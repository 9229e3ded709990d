"""Writes `types.py`: models of the parts of a pod that a GRPOJob may set, from the API's own definition.

`kubectl get --raw /openapi/v3/api/v1 | python -m grpo_api.core_v1.generate` prints the module. Descriptions
are left out, and what the definition leaves without a bound gets one, because the rules of a CRD are limited
in what they may cost.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.alias_generators import to_camel, to_snake

Definition = dict[str, Any]

PARTS = (
    "Affinity",
    "ConfigMapVolumeSource",
    "CSIVolumeSource",
    "EmptyDirVolumeSource",
    "EnvFromSource",
    "EnvVar",
    "PersistentVolumeClaimVolumeSource",
    "PodResourceClaim",
    "SecretVolumeSource",
    "Toleration",
    "TopologySpreadConstraint",
    "VolumeMount",
)
"""What a GRPOJob names; what these are made of comes with them."""
LEFT_OUT = {
    ("PodAffinityTerm", "namespaceSelector"): "namespaces says it by name; the CRD has room for one of them",
    ("EnvVarSource", "fileKeyRef"): "needs a feature gate",
    ("VolumeMount", "mountPropagation"): "anything but None needs a privileged container",
    ("VolumeMount", "recursiveReadOnly"): "needs a node that can do it",
    ("VolumeMount", "subPathExpr"): "would need the pod's variables",
}
"""Fields that are not taken, and why."""
_HEADER = '''\
"""Parts of a pod, as the Kubernetes API defines them.

Written by `generate.py`: change that, then run it. The documentation of Kubernetes describes the fields.
"""

from typing import Annotated, TypeVar

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.quantity import Quantity

T = TypeVar("T")
Text = Annotated[str, Field(max_length=4096)]
Number = Annotated[int, Field(ge=0, le=2_147_483_647)]
Items = Annotated[tuple[T, ...], Field(max_length=64)]
Map = Annotated[dict[str, Text], Field(max_length=64)]

'''
_QUANTITY = "Quantity"


class DefinitionError(Exception):
    """The definition has something that the models cannot express; the message names it."""


def module(document: Mapping[str, Any]) -> str:
    """The text of `types.py`, from the OpenAPI document of the API group `v1`. Raises DefinitionError."""
    definitions = {
        name.rpartition(".")[2]: definition for name, definition in document["components"]["schemas"].items()
    }
    written = dict.fromkeys(name for part in PARTS for name in _with_parts(part, definitions))
    return _HEADER + "\n".join(_model(name, definitions[name]) for name in written)


def _with_parts(name: str, definitions: Mapping[str, Definition]) -> Iterator[str]:
    """The models that a model needs, before it."""
    for _, field in _fields(name, definitions[name]):
        part = _referenced(field) or _referenced(field.get("items", {}))
        if part and part != _QUANTITY:
            yield from _with_parts(part, definitions)
    yield name


def _fields(name: str, definition: Definition) -> list[tuple[str, Definition]]:
    return [(key, field) for key, field in definition["properties"].items() if (name, key) not in LEFT_OUT]


def _model(name: str, definition: Definition) -> str:
    required = definition.get("required", ())
    lines = [
        _field(key, field, is_required=key in required, where=f"{name}.{key}")
        for key, field in _fields(name, definition)
    ]
    return f"\nclass {name}(ApiModel):\n" + "".join(sorted(lines))


def _field(key: str, field: Definition, *, is_required: bool, where: str) -> str:
    name = to_snake(key)
    if to_camel(name) != key:
        raise DefinitionError(f"{where} does not come back as the alias of {name}")
    kind = _type(field, where)
    return f"    {name}: {kind}\n" if is_required else f"    {name}: {kind} | None = None\n"


def _type(field: Definition, where: str) -> str:
    if part := _referenced(field):
        return part
    match field.get("type"):
        case "string":
            return "Text"
        case "integer":
            return "Number"
        case "boolean":
            return "bool"
        case "array":
            return f"Items[{_type(field['items'], where)}]"
        case "object" if field.get("additionalProperties", {}).get("type") == "string":
            return "Map"
    raise DefinitionError(f"{where} has a type that is not known here: {json.dumps(field)}")


def _referenced(field: Definition) -> str:
    """The name of the definition that a field refers to; empty when it has a type of its own."""
    reference: str = (field.get("allOf") or [field])[0].get("$ref", "")
    return reference.rpartition(".")[2]


def main() -> int:
    """Read the OpenAPI document from standard input and print the module."""
    sys.stdout.write(module(json.load(sys.stdin)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
