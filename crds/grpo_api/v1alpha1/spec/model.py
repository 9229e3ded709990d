"""`model`: the policy to start from, and with `model.lora` the adapter that is trained in its place."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.source import ModelSource
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.fields import Revision
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy

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
    sentence="model.lora.dropout must be 0, because with dropout the trainer's probabilities would not "
    "be those of the engines: remove model.lora.dropout",
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
    """Scale of the adapter: the product of the matrices is multiplied by `alpha / rank`; peft's `lora_alpha`.
    Defaults to twice the rank."""
    dropout: Annotated[float, Field(ge=0, le=1)] | None = None
    """peft's `lora_dropout`. It must be 0."""
    targets: Annotated[tuple[_Target, ...], Field(min_length=1, max_length=64), NOT_STORED] = (ALL_LINEAR,)
    """Layers that get an adapter, by the last parts of their names, such as `q_proj`; peft's
    `target_modules`. Defaults to `all-linear`, which is every linear layer except the head and the experts of
    a mixture of experts."""
    export_merged: Annotated[bool, NOT_STORED] = False
    """Also write the whole model at the end, with the adapter merged into its weights, to OUTPUT/merged.
    OUTPUT/model always has the adapter alone."""


class Dtype(StrEnum):
    """Precision of the weights in the engines and of the trainer's forward pass."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Attention(StrEnum):
    """How the trainer computes attention, by transformers' names."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH_ATTENTION_2 = "flash_attention_2"
    FLASH_ATTENTION_3 = "flash_attention_3"

    @property
    def is_flash(self) -> bool:
        """Whether it is a kernel of its own, which the image must have."""
        return self in (Attention.FLASH_ATTENTION_2, Attention.FLASH_ATTENTION_3)


@rule(
    cel="self.source.startsWith('hf://') || !has(self.revision)",
    sentence="model.revision is for hf:// sources: remove it",
    field=".revision",
)
def only_the_hub_has_revisions(source: str, revision: str | None) -> bool:
    """A revision belongs to a repository of the Hub."""
    return source.startswith("hf://") or revision is None


@rule(
    cel="!has(self.attention) || !self.attention.startsWith('flash') || !has(self.dtype) || "
    "self.dtype != 'float32'",
    sentence="model.attention names a flash kernel, which computes in bfloat16 only: remove model.dtype, or "
    "set model.attention to sdpa",
    field=".attention",
)
def flash_attention_is_not_float32(attention: Attention, dtype: Dtype | None) -> bool:
    """Flash attention has no kernels for float32."""
    return not attention.is_flash or dtype is not Dtype.FLOAT32


class ModelSpec(ApiModel):
    """The policy to start from."""

    rules = (only_the_hub_has_revisions, flash_attention_is_not_float32)

    source: ModelSource
    """`hf://ORG/NAME` is a model of the Hugging Face Hub. `pvc://CLAIM/PATH` and `file:///PATH` are Hugging
    Face model directories on a PersistentVolumeClaim and in the image. `builtin://tiny` is a small random
    Qwen2 with a character tokenizer, which needs no download."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model. A branch or tag may move to another commit; an attempt that
    finds the output of the first one stays on that one's commit."""
    dtype: Dtype | None = None
    """Precision of the weights in the engines and of the trainer's forward pass. Defaults to `bfloat16` where
    the trainer has GPUs, and to `float32` on CPU. The trainer itself keeps its weights, and what it saves, in
    float32."""
    attention: Annotated[Attention, NOT_STORED] = Attention.SDPA
    """How the trainer computes attention. Defaults to `sdpa`, which is PyTorch's own. The flash kernels need
    GPUs and an image with their package, which the product's own image does not have; nothing is downloaded.
    With them sequences are packed, and no padding is computed. Engines choose their attention themselves."""
    lora: LoraSpec | None = None
    """Train a low-rank adapter (LoRA), and leave the model's own weights as they are. Checkpoints and the
    trained model are then the adapter alone."""


# About the whole spec


@rule(
    cel="!has(self.model.attention) || !self.model.attention.startsWith('flash') || "
    + cel.has_gpus("self.trainer"),
    sentence="model.attention names a flash kernel, which runs on GPUs only: set the nvidia.com/gpu limit of "
    "trainer.resources, or set model.attention to sdpa",
    field=".model.attention",
)
def flash_attention_has_gpus(model: ModelSpec, trainer: TrainerSpec) -> bool:
    """Flash attention has no kernels for CPUs."""
    return not model.attention.is_flash or trainer.has_gpus


@rule(
    cel="!has(self.algorithm.kl) || !has(self.algorithm.kl.refSync) || !has(self.model.lora)",
    sentence="algorithm.kl.refSync needs a reference policy with weights of its own, and with "
    "model.lora the reference is the model without its adapter: remove refSync, or remove lora",
    field=".algorithm.kl.refSync",
)
def reference_has_own_weights(algorithm: AlgorithmSpec, model: ModelSpec) -> bool:
    """The weights below an adapter are not the reference's alone."""
    return algorithm.kl is None or algorithm.kl.ref_sync is None or model.lora is None


@rule(
    cel="!has(self.algorithm.kl) || self.algorithm.kl.beta == 0.0 || has(self.model.lora) || "
    f"!has(self.trainer.strategy) || self.trainer.strategy != '{TrainerStrategy.ZERO3}'",
    sentence="algorithm.kl needs a reference policy, which ZeRO3 does not spread: set trainer.strategy to "
    "FSDP2, or train an adapter with model.lora",
    field=".algorithm.kl",
)
def reference_can_be_spread(algorithm: AlgorithmSpec, model: ModelSpec, trainer: TrainerSpec) -> bool:
    """Without an adapter the reference policy is a second model."""
    is_copied = algorithm.has_reference and model.lora is None
    return not is_copied or trainer.strategy is not TrainerStrategy.ZERO3
