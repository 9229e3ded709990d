"""A transformer of a given number of parameters: the names and shapes of its tensors. Pure, without torch."""

import math
from dataclasses import dataclass

HEAD_DIM = 32
"""vLLM's attention on CPU supports 32 and 64."""
_STEP = 64
_MIN_VOCABULARY_PER_HIDDEN = 8


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a Qwen2 with untied embeddings; the width and the depth grow together."""

    hidden: int
    num_layers: int
    vocabulary: int

    @property
    def num_heads(self) -> int:
        """Attention heads; two of them share a key and a value."""
        return self.hidden // HEAD_DIM

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads // 2

    @property
    def intermediate(self) -> int:
        """The width of the MLP."""
        return self.hidden * 11 // 4

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every parameter, as Hugging Face calls and orders them."""
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for index in range(self.num_layers):
            found |= {f"model.layers.{index}.{name}": shape for name, shape in self._layer().items()}
        return found | {"model.norm.weight": (self.hidden,), "lm_head.weight": (self.vocabulary, self.hidden)}

    @property
    def num_parameters(self) -> int:
        """The numbers in all tensors."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    def _layer(self) -> dict[str, tuple[int, ...]]:
        hidden, inner, kv = self.hidden, self.intermediate, self.num_kv_heads * HEAD_DIM
        return {
            "self_attn.q_proj.weight": (hidden, hidden),
            "self_attn.q_proj.bias": (hidden,),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (hidden, hidden),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }


def shape_of(num_parameters: int) -> ModelShape:
    """The widest shape that has no more parameters, with the rest of them in the vocabulary.

    Raises ValueError when there are too few for the narrowest.
    """
    found = None
    hidden = _STEP
    while (narrow := _with_least_vocabulary(hidden)).num_parameters <= num_parameters:
        found, hidden = narrow, hidden + _STEP
    if found is None:
        raise ValueError(f"{num_parameters} parameters are too few for a transformer")
    # a token has a row in the embedding and one in the head
    more_tokens = (num_parameters - found.num_parameters) // (2 * found.hidden)
    return ModelShape(found.hidden, found.num_layers, found.vocabulary + more_tokens)


def _with_least_vocabulary(hidden: int) -> ModelShape:
    return ModelShape(hidden, num_layers=2 + hidden // 48, vocabulary=_MIN_VOCABULARY_PER_HIDDEN * hidden)
