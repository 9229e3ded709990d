"""Every rule of every model of the API, for tests about all of them."""

from collections.abc import Iterator

from grpo_api.model import ApiModel
from grpo_api.rule import Rule
from grpo_api.v1alpha1.job import GRPOJob


def every_rule() -> list[Rule]:
    """The rules of the models that a GRPOJob is made of."""
    assert GRPOJob in _below(ApiModel)
    found = {rule.sentence: rule for model in _below(ApiModel) for rule in model.rules}
    return list(found.values())


def _below(model: type[ApiModel]) -> Iterator[type[ApiModel]]:
    for child in model.__subclasses__():
        yield child
        yield from _below(child)
