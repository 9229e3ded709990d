"""`model`: the policy to start from."""

from enum import StrEnum
from typing import Annotated

from grpo_api import cel
from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.source import ModelSource
from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.fields import Revision
from grpo_api.v1alpha1.spec.lora import LoraSpec
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy


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
    """`hf://ORG/NAME` is a model of the Hugging Face Hub; `pvc://CLAIM/PATH` and `file:///PATH` are Hugging
    Face model directories on a PersistentVolumeClaim and in the image; `builtin://tiny` is a small random
    Qwen2 with a character tokenizer that needs no download."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model. Branches and tags may move to another commit; attempts that
    find the output of the first one stay on its commit."""
    dtype: Dtype | None = None
    """Precision of the weights in the engines and of the trainer's forward pass; without it `bfloat16` where
    the trainer has GPUs and `float32` on CPU. The trainer itself keeps its weights, and what it saves, in
    float32."""
    attention: Annotated[Attention, NOT_STORED] = Attention.SDPA
    """How the trainer computes attention; `sdpa`, PyTorch's own, is meant without it. The flash kernels need
    GPUs and an image with the package, which the runtime's own has not; none is ever downloaded. With them
    sequences share rows, and no padding is computed. Engines choose theirs themselves."""
    lora: LoraSpec | None = None
    """Train a low-rank adapter, and leave the model's own weights as they are. Checkpoints and the trained
    model are then the adapter alone."""


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
    sentence="algorithm.kl.refSync needs weights of the reference policy's own, and with model.lora it is "
    "the model without its adapter: remove refSync, or remove lora",
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
