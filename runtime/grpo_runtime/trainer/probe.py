"""A fixed sequence of tokens that shows whether an engine holds the trainer's weights: its logprobs must be
equal."""

import hashlib

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import Dtype
from grpo_runtime.rollout.interface import Probe
from grpo_runtime.trainer.strategy.interface import Strategy

NUM_PROBE_TOKENS = 16
TOLERANCES = {Dtype.FLOAT32: 1e-4, Dtype.BFLOAT16: 0.1}
"""Nats. float32 engines were measured within 3e-5; bfloat16 rounds the output of each layer to 8 bits."""


def probe_tokens(*, vocab_size: int, max_model_len: int) -> tuple[int, ...]:
    """Token ids spread over the whole vocabulary, the same for every run of a model."""
    # one token less than the engine's longest sequence: it must generate one to score a prompt
    length = min(NUM_PROBE_TOKENS, max_model_len - 1)
    digests = (hashlib.sha256(f"probe {index}".encode()).digest() for index in range(length))
    return tuple(int.from_bytes(digest[:8], "little") % vocab_size for digest in digests)


def make_probe(strategy: Strategy, run_config: RunConfig) -> Probe:
    """The probe of a run under the policy's present weights. With a sharded strategy every rank makes it."""
    token_ids = probe_tokens(vocab_size=strategy.vocab_size, max_model_len=run_config.engine.max_model_len)
    logprobs = strategy.probe_logprobs(torch.tensor([token_ids], device=strategy.device))
    return Probe(
        token_ids=token_ids,
        logprobs=tuple(logprobs[0].tolist()),
        tolerance=TOLERANCES[run_config.chosen_dtype],
    )
