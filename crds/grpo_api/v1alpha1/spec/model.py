"""`model`: the policy to start from."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.source import MODEL_PATTERN
from grpo_api.v1alpha1.spec.fields import Revision


class Dtype(StrEnum):
    """Precision of the weights in the engines and of the trainer's forward pass."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@rule(
    cel="self.source.startsWith('hf://') || !has(self.revision)",
    sentence="model.revision is for hf:// sources: remove it",
    field=".revision",
)
def only_the_hub_has_revisions(source: str, revision: str | None) -> bool:
    """A revision belongs to a repository of the Hub."""
    return source.startswith("hf://") or revision is None


class ModelSpec(ApiModel):
    """The policy to start from."""

    rules = (only_the_hub_has_revisions,)

    source: Annotated[str, Field(pattern=MODEL_PATTERN, max_length=1024)]
    """`hf://ORG/NAME` is a model of the Hugging Face Hub; `pvc://CLAIM/PATH` and `file:///PATH` are Hugging
    Face model directories on a PersistentVolumeClaim and in the image; `builtin://tiny` is a small random
    Qwen2 with a character tokenizer that needs no download."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model. Branches and tags may move to another commit."""
    dtype: Dtype = Dtype.FLOAT32
    """Precision of the weights in the engines and of the trainer's forward pass; the trainer itself keeps its
    weights, and what it saves, in float32."""
