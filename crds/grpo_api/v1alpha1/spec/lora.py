"""`model.lora`: an adapter that is trained in place of the model's own weights."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.text_rule import Follows, TextRule

ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head."""
_Target = Annotated[
    str,
    Field(max_length=128),
    Follows(
        TextRule(
            "^[A-Za-z0-9_.-]+$",
            "must be the last parts of a layer's name: use letters, digits, _, . and -, such as q_proj",
        )
    ),
]


@rule(
    cel="!has(self.dropout) || self.dropout == 0.0",
    sentence="model.lora.dropout must be 0, because with it the trainer's probabilities are not those of the "
    "engines, by which every completion is weighed: remove model.lora.dropout",
    field=".dropout",
)
def adapter_drops_nothing(dropout: float | None) -> bool:
    """Trainer and engines compute the same."""
    return not dropout


@rule(
    cel=f"!has(self.targets) || !('{ALL_LINEAR}' in self.targets) || size(self.targets) == 1",
    sentence=f"model.lora.targets has {ALL_LINEAR}, which means every linear layer but the head, beside "
    f"other names: remove these, or {ALL_LINEAR}",
    field=".targets",
)
def all_layers_are_named_alone(targets: tuple[str, ...]) -> bool:
    """`all-linear` stands alone: a name beside it would add no layer."""
    return ALL_LINEAR not in targets or len(targets) == 1


class LoraSpec(ApiModel):
    """A low-rank adapter (LoRA), which is trained while the model's own weights stay as they are."""

    rules = (adapter_drops_nothing, all_layers_are_named_alone)

    rank: Annotated[int, Field(ge=1, le=1024)]
    """Rank of the two matrices whose product is added to a layer's weight; peft's `r`."""
    alpha: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The product counts `alpha / rank` times; peft's `lora_alpha`. Without it twice the rank."""
    dropout: Annotated[float, Field(ge=0, le=1)] | None = None
    """peft's `lora_dropout`, which must be 0 here."""
    targets: Annotated[tuple[_Target, ...], Field(min_length=1, max_length=64), NOT_STORED] = (ALL_LINEAR,)
    """The layers that get an adapter, by the last parts of their names, such as `q_proj`; peft's
    `target_modules`. Without it `all-linear`: every linear layer but the head, and of a mixture of experts
    none of the experts."""
    export_merged: Annotated[bool, NOT_STORED] = False
    """Whether the whole model, with the adapter in its weights, is written at the end too, to OUTPUT/merged.
    OUTPUT/model always has the adapter alone."""
