"""The schema of GRPOJob that the API server serves, beside the one that this operator was built with. Pure.

An operator may be newer than the CRD of its cluster. The API server then drops fields of a spec that the CRD
lacks, and refuses a status as a whole when one field of it is not declared. So a status is written without
what the CRD lacks, and the job says which CRD is missing.

The schema may also be older than the CRD: it is read once per resync, and the API server that answered may
lag behind another one. What a stored status shows was not dropped, so the CRD has it, whatever the schema
says. Without that rule two operators with schemas of different age would undo each other's writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_api.schema import Schema, structural_schema
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import GRPOJobStatus

_NUM_NAMED = 8


@dataclass(frozen=True)
class ServedSchema:
    """What follows from a CRD that lacks something."""

    problem: str = ""
    """What it lacks, and what a person has to do about it; empty when it lacks nothing."""
    status: Schema | None = None
    """Its schema of the status; None when that has everything, or when nothing is known about it."""

    def fit_object(self, status: GRPOJobStatus, *, shown: Mapping[str, Any]) -> dict[str, Any]:
        """The status as the API server accepts it: plain data without what the CRD lacks. `shown` is the
        stored status, of which the CRD lacks nothing."""
        data = status.to_object()
        return data if self.status is None else dict(_fitted(data, self.status, shown))

    def fit(self, status: GRPOJobStatus, *, shown: Mapping[str, Any]) -> GRPOJobStatus:
        """The status as it is read back once it is written."""
        if self.status is None:
            return status
        return GRPOJobStatus.from_object(self.fit_object(status, shown=shown))

    def is_older_than(self, shown: Mapping[str, Any]) -> bool:
        """Whether a stored status shows what this schema lacks."""
        return self.status is not None and _fitted(dict(shown), self.status, {}) != shown


EVERYTHING = ServedSchema()
"""The schema of a cluster that has the operator's own CRD, or of which nothing is known."""


def compare(served: Schema | None, *, release: str) -> ServedSchema:
    """What a served schema of GRPOJob lacks of ours; nothing when the API server shows none. `release` is the
    operator's."""
    if served is None or not {"spec", "status"} <= served.get("properties", {}).keys():
        return EVERYTHING
    spec, status = served["properties"]["spec"], served["properties"]["status"]
    of_spec = tuple(_lacking(structural_schema(GRPOJobSpec), spec, "spec", has_choices=False))
    of_status = tuple(_lacking(structural_schema(GRPOJobStatus), status, "status", has_choices=True))
    lacking = (*of_spec, *of_status)
    return ServedSchema(_problem(lacking, release=release), status if of_status else None)


def _problem(lacking: Sequence[str], *, release: str) -> str:
    if not lacking:
        return ""
    named = ", ".join(lacking[:_NUM_NAMED])
    rest = len(lacking) - _NUM_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"the GRPOJob CRD is older than this operator and lacks {named}{more}, which the API server drops: "
        f"an administrator of the cluster should install the CRD of the operator's release ({release}), by "
        "`helm upgrade` with crd.install=true or by `kubectl apply --server-side -f crds/grpojobs.yaml`"
    )


def _lacking(ours: Schema, theirs: Schema, path: str, *, has_choices: bool) -> Iterator[str]:
    """Paths that only we have. A field that is lacking stands for all below it."""
    for name, field in ours.get("properties", {}).items():
        other = theirs.get("properties", {}).get(name)
        if other is None:
            yield f"{path}.{name}"
        else:
            yield from _lacking(field, other, f"{path}.{name}", has_choices=has_choices)
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(ours.get(key), dict) and isinstance(theirs.get(key), dict):
            yield from _lacking(ours[key], theirs[key], f"{path}{suffix}", has_choices=has_choices)
    if has_choices and "enum" in ours and "enum" in theirs:
        yield from (f"{path} {choice}" for choice in ours["enum"] if choice not in theirs["enum"])


_DROPPED: Any = object()
_NOTHING: Schema = {}
"""The schema of a field that is lacking: of its parts, those stay that the stored one shows."""


def _fitted(value: Any, schema: Schema, shown: Any) -> Any:
    """A value without what neither its schema has nor the stored value shows, or _DROPPED. An item of a list
    goes as a whole when a choice in it is lacking, such as a condition of an unknown type."""
    if isinstance(value, dict) and ("properties" in schema or schema is _NOTHING):
        known, stored = schema.get("properties", {}), shown if isinstance(shown, Mapping) else {}
        parts = {
            key: _fitted(part, known.get(key, _NOTHING), stored.get(key))
            for key, part in value.items()
            if key in known or key in stored
        }
        return {key: part for key, part in parts.items() if part is not _DROPPED}
    if isinstance(value, list) and "items" in schema:
        required, keys = (schema["items"].get("required", ()), schema.get("x-kubernetes-list-map-keys", ()))
        items = [_fitted(item, schema["items"], _stored_item(item, shown, keys)) for item in value]
        return [
            i for i in items if i is not _DROPPED and (not isinstance(i, dict) or set(required) <= i.keys())
        ]
    is_known = value in schema.get("enum", [value]) or value == shown
    return value if is_known else _DROPPED


def _stored_item(item: Any, shown: Any, keys: Sequence[str]) -> Any:
    """The item of a stored list that is the same by its keys; None without one."""
    if not keys or not isinstance(shown, list):
        return None
    return next((each for each in shown if all(each.get(key) == item.get(key) for key in keys)), None)
