"""Seconds and memory of training steps, by the way the policy is trained."""

import gc
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_bench.random_model import random_model
from grpo_gpu.shapes import Shape, peak_of
from grpo_runtime.rollout.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.device import collective_backend
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.stop import StopRequest
from grpo_runtime.trainer.strategy.registry import STRATEGIES

PROMPT_SHARE = 4
"""One token in so many is of the prompt."""


@dataclass(frozen=True)
class Load:
    """What every way learns from."""

    shape: Shape
    num_sequences: int
    longest: int
    """Tokens of the longest sequence, prompt included."""
    budget: int
    num_rounds: int

    @property
    def lengths(self) -> list[int]:
        """From half of the longest to the longest, as evenly as completions that end by themselves rarely
        are."""
        half = self.longest // 2
        return [
            half + (self.longest - half) * (index + 1) // self.num_sequences
            for index in range(self.num_sequences)
        ]


@dataclass(frozen=True)
class Way:
    """How the policy is trained."""

    name: str
    strategy: str
    recomputes: bool


WAYS = (Way("DDP", "DDP", True), Way("DDP, kept", "DDP", False), Way("FSDP2", "FSDP2", True))


@dataclass(frozen=True)
class Figures:
    """What one way took. `share` is that of the GPU's peak, `peak_bytes` of its memory; None if unknown."""

    seconds: float
    tokens_per_second: float
    share: float | None
    peak_bytes: int | None
    metrics: dict[str, float]


def measure(load: Load, *, device: torch.device, json_file: Path | None) -> int:
    """Measure every way, print a table, and append to the file. Returns 0."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    num_tokens = sum(load.lengths)
    print(f"{load.num_sequences} sequences, {num_tokens} tokens, on {name}, torch {torch.__version__}")
    ranks = Ranks.meet(
        rank=0,
        world_size=1,
        address="127.0.0.1",
        port=0,
        backend=collective_backend(device),
        stop=StopRequest(),
    )
    for way in WAYS:
        found = figures(load, way, ranks=ranks, device=device, peak=peak_of(name))
        share = "" if found.share is None else f"{found.share:6.1%} of peak"
        memory = "" if found.peak_bytes is None else f"{found.peak_bytes / 2**30:6.1f} GiB"
        print(
            f"  {way.name:10} {found.seconds:7.3f} s  {found.tokens_per_second:9.0f} tokens/s {share}{memory}"
        )
        if json_file is not None:
            line = {"bench": "gpu/learner", "gpu": name, "way": way.name, **vars(found)}
            with json_file.open("a") as file:
                file.write(json.dumps(line) + "\n")
    ranks.leave()
    return 0


def figures(load: Load, way: Way, *, ranks: Ranks, device: torch.device, peak: float | None) -> Figures:
    """Train `num_rounds` steps in one way."""
    _reset_peak(device)
    learner, batch = _learner(load, way, ranks=ranks, device=device), a_batch(load)
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    for step in range(load.num_rounds):
        _wait_for(device)
        start = time.monotonic()
        metrics = learner.update(batch, step=step)
        _wait_for(device)
        seconds.append(time.monotonic() - start)
    took = statistics.median(seconds[1:] or seconds)
    share = None if peak is None else load.shape.operations(load.lengths) / took / peak
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Figures(took, sum(load.lengths) / took, share, peak_bytes, metrics)


def _learner(load: Load, way: Way, *, ranks: Ranks, device: torch.device) -> Learner:
    algorithm = AlgorithmSpec(steps=load.num_rounds, optimizer=OptimizerSpec())
    policy = Policy(
        a_model(load.shape),
        temperature=1.0,
        dtype=Dtype.BFLOAT16 if device.type == "cuda" else Dtype.FLOAT32,
        gradient_checkpointing=way.recomputes,
    )
    strategy = STRATEGIES[way.strategy](
        policy, optimizer=algorithm.optimizer, total_steps=algorithm.steps or 0, ranks=ranks, device=device
    )
    strategy.load(None)
    return Learner(strategy, algorithm, micro_batch_tokens=load.budget, ranks=ranks)


def a_model(shape: Shape) -> Qwen2ForCausalLM:
    """A random one, in float32 on the CPU, as a rank 0 has loaded it."""
    return random_model(
        shape,
        vocabulary=shape.vocab_size,
        num_kv_heads=shape.num_kv_heads,
        max_position_embeddings=32768,
    )


def a_batch(load: Load) -> Batch:
    """Random tokens, as a sampler of equal probabilities would have drawn them."""
    generator = torch.Generator().manual_seed(2)
    logprob = -math.log(load.shape.vocab_size)
    rollouts = []
    for length in load.lengths:
        tokens = torch.randint(load.shape.vocab_size, (length,), generator=generator).tolist()
        num_prompt = max(1, length // PROMPT_SHARE)
        completion = tuple(tokens[num_prompt:])
        rollouts.append(
            Rollout(tuple(tokens[:num_prompt]), completion, (logprob,) * len(completion), (), True, "none")
        )
    advantages = torch.linspace(-1, 1, load.num_sequences)
    return make_batch(rollouts, advantages=advantages, pad_id=0)


def _reset_peak(device: torch.device) -> None:
    """Of what is held from now on, when the way before is gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
