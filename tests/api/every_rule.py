"""Every rule of every model of the API, for tests about all of them."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from grpo_api.model import ApiModel
from grpo_api.rule import Follows, Rule, TextRule
from grpo_api.v1alpha1.job import GRPOJob


def every_rule() -> list[Rule]:
    """The rules of the models that a GRPOJob is made of."""
    assert GRPOJob in _below(ApiModel)
    found = {rule.sentence: rule for model in _below(ApiModel) for rule in model.rules}
    return list(found.values())


def every_text_rule() -> list[TextRule]:
    """The rules about single texts, of the fields of the models that a GRPOJob is made of."""
    models = set(_below(ApiModel))
    hints = (hint for model in models for hint in get_type_hints(model, include_extras=True).values())
    found = {rule.sentence: rule for hint in hints for rule in _in_hint(hint)}
    return list(found.values())


def _in_hint(hint: Any) -> Iterator[TextRule]:
    for metadata in getattr(hint, "__metadata__", ()):
        if isinstance(metadata, Follows):
            yield from metadata.rules
    for part in get_args(hint):
        yield from _in_hint(part)


def _below(model: type[ApiModel]) -> Iterator[type[ApiModel]]:
    for child in model.__subclasses__():
        yield child
        yield from _below(child)
