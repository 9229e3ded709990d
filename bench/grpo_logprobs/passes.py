"""Forward and backward pass of a micro-batch, with dense and with chunked logprobs, and what they take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from grpo_api.v1alpha1.spec import Dtype
from grpo_bench.errors import BenchError
from grpo_bench.live_tensors import LiveTensors
from grpo_bench.pairs import Amounts, Way
from grpo_bench.random_model import random_model
from grpo_logprobs.cases import Case
from grpo_runtime.trainer.policy import Policy

_TOLERANCES = {"cpu": 1e-4, "cuda": 0.1}
"""Nats between the two ways, in float32 on the CPU and bfloat16 on a GPU."""
_MIB = 2**20

Logprobs = Callable[[], torch.Tensor]
"""Computes the logprobs [B, T-1] of the micro-batch, 0 outside the mask."""


@dataclass(frozen=True)
class _Micro:
    policy: Policy
    token_ids: torch.Tensor
    mask: torch.Tensor

    def chunked(self) -> torch.Tensor:
        """As the trainer does."""
        return self.policy(self.token_ids, self.mask)[0]

    def dense(self) -> torch.Tensor:
        """By the logits [B, T, V] that the model itself makes, and autograd through their softmax."""
        is_mixed = self.policy.dtype != torch.float32
        with torch.autocast(self.token_ids.device.type, dtype=self.policy.dtype, enabled=is_mixed):
            logits = self.policy.model(input_ids=self.token_ids, use_cache=False).logits[:, :-1]
        log_softmax = logits.float().log_softmax(-1)
        chosen = log_softmax.gather(-1, self.token_ids[:, 1:, None]).squeeze(-1)
        # the trainer reports entropies, too
        torch.special.entr(log_softmax.detach().exp()).sum(-1)
        return torch.where(self.mask, chosen, 0.0)


@contextmanager
def dense_and_chunked(case: Case, *, device: str) -> Iterator[tuple[Way, Way]]:
    """Both ways, of the same weights and tokens. Raises BenchError when there is no such device, or when
    their logprobs differ."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device cuda: there is no NVIDIA GPU that torch can use")
    micro = _micro(case, device=device)
    with torch.no_grad():
        error = float((micro.dense() - micro.chunked()).abs().max())
    if not error <= _TOLERANCES[device]:
        raise BenchError(f"the two ways differ by {error:.2g} nats: they do not do the same")
    yield _way("dense", micro.dense, micro), _way("chunked", micro.chunked, micro)


def _micro(case: Case, *, device: str) -> _Micro:
    model = random_model(case, vocabulary=case.vocabulary, num_kv_heads=case.num_heads, is_tied=True, seed=0)
    torch.nn.Module.to(model, device)
    dtype = Dtype.FLOAT32 if device == "cpu" else Dtype.BFLOAT16
    width = case.prompt_tokens + case.completion_tokens
    token_ids = torch.randint(case.vocabulary, (case.num_sequences, width)).to(device)
    mask = (torch.arange(1, width) >= case.prompt_tokens).expand(case.num_sequences, -1).to(device)
    return _Micro(Policy(model, temperature=1.0, dtype=dtype), token_ids, mask)


def _way(name: str, logprobs: Logprobs, micro: _Micro) -> Way:
    def run(_: int) -> Amounts:
        _pass(logprobs, micro)  # warms up
        started = time.perf_counter()
        _pass(logprobs, micro)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "peak MiB": _peak_bytes(logprobs, micro) / _MIB}

    return Way(name, run)


def _pass(logprobs: Logprobs, micro: _Micro) -> None:
    micro.policy.zero_grad()
    logprobs().sum().backward()
    if micro.policy.device.type == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(logprobs: Logprobs, micro: _Micro) -> int:
    """Beside weights and tokens, which were there before."""
    micro.policy.zero_grad()
    if micro.policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _pass(logprobs, micro)
        return torch.cuda.max_memory_allocated() - before
    held = (*micro.policy.parameters(), *micro.policy.buffers(), micro.token_ids, micro.mask)
    with LiveTensors(known=held) as live:
        _pass(logprobs, micro)
    return live.peak_bytes
