"""The policy as the loss sees it: token ids in, logprobs of the tokens that were chosen out."""

from collections.abc import Callable
from functools import cached_property

import torch
from transformers import PreTrainedModel

from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.algorithm.logprobs import TokenLogprobs
from grpo_runtime.model.activations import recompute_activations
from grpo_runtime.model.head import install_scoring_head, last_hidden_states
from grpo_runtime.model.load import MODEL_DTYPES
from grpo_runtime.model.lora import (
    ADAPTER_DTYPE,
    base_parameters,
    has_adapter,
    is_of_adapter,
    merged_parameters,
)
from grpo_runtime.model.packing import pack
from grpo_runtime.model.weights import NamedTensors, named_weights, weight_shapes
from grpo_runtime.weight_sync.source import TensorSpec

MASTER_DTYPE = "float32"
"""The trainer's own weights: a bfloat16 weight would round most updates at usual learning rates away."""


class Policy(torch.nn.Module):
    """A causal language model at the temperature it is sampled with, computing in `dtype` as engines do.

    B sequences, T tokens. The model gets a `ScoringHead`. A strategy that shards the policy calls it, and not
    a part of it: the weights are then whole wherever the passes read them, in calls of their own modules.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        dtype: Dtype,
        gradient_checkpointing: bool = False,
        is_packed: bool = False,
        has_entropy_gradient: bool = False,
    ) -> None:
        """`is_packed` when the sequences of a call share a row, which `can_pack` must allow;
        `has_entropy_gradient` when entropies have a part in the loss. Raises UserError as
        `recompute_activations` does, with `gradient_checkpointing`."""
        super().__init__()
        # dropout would make the trainer's probabilities differ from the engines'
        self.model = model.eval()
        install_scoring_head(model)
        if gradient_checkpointing:
            recompute_activations(self.model)
        self._temperature = temperature
        self._is_packed = is_packed
        self._has_entropy_gradient = has_entropy_gradient
        self.dtype = MODEL_DTYPES[dtype.value]
        """The precision of the run: that of the forward pass, and of the engines' weights."""

    @property
    def device(self) -> torch.device:
        """Where the weights are and token ids must be."""
        device: torch.device = self.model.device
        return device

    @property
    def has_adapter(self) -> bool:
        """Whether an adapter is trained, and not the weights of the model."""
        return has_adapter(self.model)

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters that the optimizer changes, by their names in the model."""
        return {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def saved_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters that are in a checkpoint: of a model with an adapter the adapter's, else all."""
        if self.has_adapter:
            return self.trained_parameters()
        return dict(self.model.named_parameters())

    def saved_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers that are in a checkpoint beside `saved_parameters`: none of them is trained."""
        if self.has_adapter:
            return {}
        saved = self.model.state_dict().keys()
        return {name: tensor for name, tensor in self.model.named_buffers() if name in saved}

    def engine_dtype(self, name: str) -> torch.dtype:
        """Dtype in which the shards of a parameter are put together for engines, before it is cast to the one
        in which it travels (`PolicyWeights.layout`): the run's precision, or the adapter's own, whose product
        is rounded once it is in the weights."""
        return ADAPTER_DTYPE if is_of_adapter(name) else self.dtype

    def forward(
        self, token_ids: torch.Tensor, mask: torch.Tensor, *, temperature: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [B, T-1] of tokens 1.. of `token_ids` [B, T], in nats, in float32.

        They are computed where `mask` [B, T-1] is true and are 0 elsewhere. Every parameter takes part in the
        graph, with a gradient of 0 when the mask is true nowhere. `temperature` is by default the sampler's.
        """
        is_mixed = self.dtype != torch.float32
        with torch.autocast(token_ids.device.type, dtype=self.dtype, enabled=is_mixed):
            hidden = self._hidden_states(token_ids, mask)
            found: TokenLogprobs = self.model.get_output_embeddings()(
                hidden,
                token_ids[:, 1:][mask],
                self._temperature if temperature is None else temperature,
                self._has_entropy_gradient,
            )
        logprobs, entropies = (values.new_zeros(mask.shape).masked_scatter(mask, values) for values in found)
        return logprobs, entropies

    def _hidden_states(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[S, H], those that predict the tokens where `mask` is true."""
        if self._is_packed:
            row = pack(token_ids, mask)
            hidden = last_hidden_states(self.model, row.token_ids, position_ids=row.position_ids)
            return hidden[0].index_select(0, row.scored)
        # position t predicts token t + 1; the last one predicts nothing
        positions = torch.nn.functional.pad(mask, (0, 1)).flatten().nonzero().squeeze(-1)
        return last_hidden_states(self.model, token_ids).flatten(0, 1).index_select(0, positions)

    @torch.no_grad()
    def logprobs_at_one(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs [B, T-1] at temperature 1, as an engine reports them for a prompt."""
        everywhere = torch.ones_like(token_ids[:, 1:], dtype=torch.bool)
        logprobs: torch.Tensor
        logprobs, _ = self(token_ids, everywhere, temperature=1.0)
        return logprobs


class PolicyWeights:
    """The weights of a policy as engines hold them, in the run's precision: a `WeightSource`.

    `whole_parameters` gives each parameter of the model by name, where the model itself has only a part.
    """

    def __init__(
        self,
        policy: Policy,
        whole_parameters: Callable[[], NamedTensors] | None = None,
    ) -> None:
        self._policy = policy
        self._whole_parameters = whole_parameters or policy.model.named_parameters

    def layout(self) -> tuple[TensorSpec, ...]:
        """Layout of what `tensors` gives, known beforehand."""
        return self._layout

    @cached_property
    def _layout(self) -> tuple[TensorSpec, ...]:
        """A sync asks for it several times, and transformers takes milliseconds to name the weights."""
        return tuple(
            TensorSpec(name, shape, self._policy.dtype)
            for name, shape in weight_shapes(self._policy.model, base_parameters(self._policy.model))
        )

    def tensors(self) -> NamedTensors:
        """The weights, each whole, one after the other. The tensors may share memory with the policy. An
        adapter is in them."""
        model = self._policy.model
        return named_weights(model, merged_parameters(model, self._whole_parameters()))
