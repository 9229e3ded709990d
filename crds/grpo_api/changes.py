"""Which fields of a spec may change once its job exists.

A field that may change has MAY_CHANGE in its `Annotated`; all others are fixed. The API server's rules, the
snapshot of a running job and the values that it follows are derived from the models here.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from grpo_api.model import ApiModel

M = TypeVar("M", bound=ApiModel)


class _MayChange:
    """Type of MAY_CHANGE."""


MAY_CHANGE = _MayChange()
"""Marks a field whose changes a running job follows."""


@dataclass(frozen=True)
class Transition:
    """A rule between the old and the new spec, which only the API server can check. `field` is the path below
    the spec that a refusal is about."""

    cel: str
    sentence: str
    field: str

    def validation(self) -> dict[str, str]:
        """The rule as an item of `x-kubernetes-validations`."""
        return {"rule": self.cel, "message": self.sentence, "fieldPath": self.field}


def fixed_paths(model: type[ApiModel]) -> tuple[str, ...]:
    """Paths of all fixed fields, in YAML's names. A section is one path, unless a part of it may change:
    then its fixed fields have a path each."""
    return tuple(_fixed_paths(model))


def stays(path: str, *, is_optional: bool) -> Transition:
    """The rule that the field at `path` keeps its value and is neither added nor removed."""
    cel = f"self.{path} == oldSelf.{path}"
    if is_optional:
        cel = f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {cel})"
    parent = path.rpartition(".")[0]
    if parent:
        cel = f"!has(self.{parent}) || !has(oldSelf.{parent}) || {cel}"
    sentence = f"spec.{path} cannot be changed once the job exists: create a new job"
    return Transition(cel, sentence, field=f".{path}")


def names_stay(path: str, *, key: str) -> Transition:
    """The rule that a list keeps the items that `key` distinguishes, in their order, and is neither added nor
    removed."""
    same = f"self.{path}.map(item, item.{key}) == oldSelf.{path}.map(item, item.{key})"
    cel = f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})"
    return Transition(cel, stays(path, is_optional=False).sentence, field=f".{path}")


def item_stays(path: str, *, item: type[ApiModel]) -> dict[str, str]:
    """The rule of each item of such a list, as in `x-kubernetes-validations`. A field that the API server
    does not fill in is the same whether it is absent or has its default."""
    same = " && ".join(_is_same(field) for field in item.model_fields.values())
    return {"rule": same, "message": stays(path, is_optional=False).sentence}


_CEL_KEYWORDS = frozenset({"function", "in", "if", "for", "import", "package", "namespace"})
"""CEL keywords that may be names of our fields. CEL has them between underscores."""


def _is_same(field: FieldInfo) -> str:
    key = _key(field)
    name = f"__{key}__" if key in _CEL_KEYWORDS else key
    if field.is_required():
        return f"self.{name} == oldSelf.{name}"
    if field.default is None:
        return (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
        )
    default = json.dumps(field.default)
    # the API server bounds the cost of comparing two fields, and not that of comparing what `?:` has chosen
    return (
        f"(has(self.{name}) ? (has(oldSelf.{name}) ? self.{name} == oldSelf.{name} : "
        f"self.{name} == {default}) : (!has(oldSelf.{name}) || oldSelf.{name} == {default}))"
    )


def fixed_part(value: ApiModel) -> dict[str, Any]:
    """`value` as plain data without the fields that may change. Two specs with the same fixed part are the
    same run: one that leaves a field out, and one that has its default."""
    data = value.without_own_defaults()
    for name, field in type(value).model_fields.items():
        key, section = _key(field), getattr(value, name)
        if MAY_CHANGE in field.metadata:
            data.pop(key, None)
        elif key in data and isinstance(section, ApiModel):
            data[key] = fixed_part(section)
    return data


def with_changes(snapshot: M, *, live: M) -> M:
    """`snapshot` with the values that `live` has in the fields that may change. A section that only one of
    them has stays as in `snapshot`, and where nothing has changed it is `snapshot` itself."""
    changes: dict[str, Any] = {}
    for name, field in type(snapshot).model_fields.items():
        before, now = getattr(snapshot, name), getattr(live, name)
        if MAY_CHANGE in field.metadata:
            if now != before:
                changes[name] = now
        elif isinstance(before, ApiModel) and isinstance(now, ApiModel):
            section = with_changes(before, live=now)
            if section is not before:
                changes[name] = section
    return snapshot.model_copy(update=changes) if changes else snapshot


def _fixed_paths(model: type[ApiModel], prefix: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        section = _section(field)
        if MAY_CHANGE in field.metadata:
            continue
        if section is not None and _has_changes(section):
            yield from _fixed_paths(section, f"{prefix}{_key(field)}.")
        else:
            yield f"{prefix}{_key(field)}"


def _has_changes(model: type[ApiModel]) -> bool:
    fields = model.model_fields.values()
    return any(
        MAY_CHANGE in field.metadata or ((section := _section(field)) is not None and _has_changes(section))
        for field in fields
    )


def _section(field: FieldInfo) -> type[ApiModel] | None:
    """The model of a field that holds one, or may; None for a value or a list."""
    options = (field.annotation, *get_args(field.annotation))
    found = [option for option in options if isinstance(option, type) and issubclass(option, ApiModel)]
    is_list = getattr(field.annotation, "__origin__", None) in (tuple, list, dict)
    return found[0] if found and not is_list else None


def _key(field: FieldInfo) -> str:
    assert field.alias is not None  # ApiModel gives every field one
    return field.alias
