"""The head of a language model: from hidden states to the logprobs of chosen tokens, as one module call.

What a family does between its head and its logits is here too, and nowhere else.
"""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from grpo_runtime.algorithm.logprobs import TokenLogprobs, head_logprobs
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import vocabulary_size

_MULTIPLIERS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_DIVISORS = ("logits_scaling",)
"""Options of a model's config by which its logits are multiplied (Cohere, Falcon-H1, MuseGlimmer) and divided
(Granite), before a softcap (`final_logit_softcapping`, Gemma)."""
_NUM_COMPARED = 3
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Nats. In bfloat16 a family rounds its logits once more than we do."""


class ScoringHead(torch.nn.Linear):
    """A model's head that also scores tokens, with the logits of a few positions at a time.

    It takes the place of the `torch.nn.Linear` in the model and has its parameters, which may be tied. As
    the parameters are read in its forward only, which is called once in each pass, a strategy may shard them
    with this module or with one around it: both passes then find them whole if the strategy puts them
    together for the forward and the backward of that module, as FSDP2 and ZeRO do.
    """

    def __init__(self, linear: torch.nn.Linear, *, config: PreTrainedConfig) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._scale, self._softcap = _logit_scale(config), _softcap(config)

    def forward(
        self,
        input: torch.Tensor,
        token_ids: torch.Tensor | None = None,
        temperature: float = 1.0,
        has_entropy_gradient: bool = False,
    ) -> Any:
        """What the replaced layer gives; with `token_ids` [N] their `TokenLogprobs` for hidden states [N, H].

        Under autocast the product is computed in its precision.
        """
        if token_ids is None:
            return super().forward(input)
        device = input.device.type
        return head_logprobs(
            input,
            weight=self.weight,
            bias=self.bias,
            token_ids=token_ids,
            temperature=temperature,
            scale=self._scale,
            softcap=self._softcap,
            dtype=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            has_entropy_gradient=has_entropy_gradient,
        )


def last_hidden_states(
    model: PreTrainedModel, token_ids: torch.Tensor, *, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """[B, T, H] of `token_ids` [B, T], as the model gives them to its head. `position_ids` [1, T] are for
    sequences that share a row."""
    # some families take no positions
    positions = {} if position_ids is None else {"position_ids": position_ids}
    hidden: torch.Tensor = model.base_model(
        input_ids=token_ids, use_cache=False, **positions
    ).last_hidden_state
    return hidden


def install_scoring_head(model: PreTrainedModel) -> ScoringHead:
    """Put a `ScoringHead` in the place of the model's head, unless it has one. Raises UserError when the
    model has no linear head over a base model; the parameters are not read."""
    head = model.get_output_embeddings()
    if isinstance(head, ScoringHead):
        return head
    if not isinstance(head, torch.nn.Linear) or model.base_model is model:
        raise UserError(f"{type(model).__name__} cannot be trained: it has no linear head over a base model")
    scoring = ScoringHead(head, config=model.config)
    model.set_output_embeddings(scoring)
    return scoring


@torch.no_grad()
def require_same_logprobs(model: PreTrainedModel) -> None:
    """Raises UserError when a model, which has its weights and its scoring head, is of a family whose own
    forward pass makes other logits of the hidden states."""
    ids = (torch.arange(_NUM_COMPARED + 1) % vocabulary_size(model.config)).to(model.device)
    own = model(input_ids=ids[None, :-1], use_cache=False).logits[0].float().log_softmax(-1)
    expected = TokenLogprobs(own.gather(-1, ids[1:, None])[:, 0], torch.special.entr(own.exp()).sum(-1))
    hidden = last_hidden_states(model, ids[None, :-1])[0]
    found = install_scoring_head(model)(hidden, ids[1:])
    for ours, theirs in zip(found, expected, strict=True):
        if not torch.allclose(ours, theirs, rtol=0, atol=_TOLERANCES[model.dtype]):
            raise UserError(
                f"{type(model).__name__} cannot be trained: it computes its logits in a way that is not "
                f"known here (the logprobs differ by {float((ours - theirs).abs().max()):.2g} nats)"
            )


def _logit_scale(config: PreTrainedConfig) -> float:
    text = config.get_text_config()
    scale = 1.0
    for name in _MULTIPLIERS:
        scale *= _number(text, name, default=1.0)
    for name in _DIVISORS:
        scale /= _number(text, name, default=1.0)
    return scale


def _softcap(config: PreTrainedConfig) -> float | None:
    softcap: float | None = getattr(config.get_text_config(), "final_logit_softcapping", None)
    return softcap


def _number(config: PreTrainedConfig, name: str, *, default: float) -> float:
    value: float | None = getattr(config, name, None)
    return default if value is None else value
