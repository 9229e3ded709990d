"""Seconds and memory of training steps, by the way the policy is trained."""

import contextlib
import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_bench.live_tensors import LiveTensors
from grpo_bench.random_model import random_model
from grpo_gpu.shapes import Shape, peak_of
from grpo_runtime.algorithm.logprobs import CHUNK_LOGITS
from grpo_runtime.memory_plan.formulas import DDP, ModelSizes, StepSizes, fsdp2, training_bytes
from grpo_runtime.memory_plan.model_sizes import model_sizes
from grpo_runtime.rollouts.interface import Rollout
from grpo_runtime.trainer.batch import Batch, make_batch
from grpo_runtime.trainer.device import collective_backend
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.registry import STRATEGIES

PROMPT_FRACTION = 4
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
    """What one way took."""

    seconds: float
    tokens_per_second: float
    share: float | None
    """Of the GPU's peak of operations; None if unknown."""
    peak_bytes: int
    """Most memory at one time: of the GPU by its allocator, on the CPU of all tensors."""
    planned_bytes: int
    """What `grpo-runtime validate` says of it."""
    metrics: dict[str, float]


def measure(
    load: Load, ways: Sequence[Way], *, size: str, device: torch.device, json_file: Path | None
) -> int:
    """Measure some ways to train a model of that size, print a table, append to the file. Returns 0."""
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
    for way in ways:
        found = figures(load, way, ranks=ranks, device=device, peak=peak_of(name))
        share = "" if found.share is None else f"{found.share:6.1%} of peak"
        memory = f"{found.peak_bytes / 2**30:6.1f} GiB of {found.planned_bytes / 2**30:.1f} planned"
        print(
            f"  {way.name:10} {found.seconds:7.3f} s  {found.tokens_per_second:9.0f} tokens/s {share}{memory}"
        )
        if json_file is not None:
            line = {"bench": "gpu/learner", "gpu": name, "size": size, "way": way.name, **vars(found)}
            with json_file.open("a") as file:
                file.write(json.dumps(line) + "\n")
    ranks.leave()
    return 0


def figures(load: Load, way: Way, *, ranks: Ranks, device: torch.device, peak: float | None) -> Figures:
    """Train `num_rounds` steps in one way. On the CPU the seconds are longer than those of a run, because
    every tensor is counted."""
    with _peak_bytes(device) as peak_bytes:
        model, batch = a_model(load.shape), a_batch(load)
        sizes = model_sizes(model)
        learner = _learner(model, load, way, ranks=ranks, device=device)
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
        planned = planned_bytes(sizes, load, way, dtype=_dtype(device))
        return Figures(took, sum(load.lengths) / took, share, peak_bytes(), planned, metrics)


def planned_bytes(sizes: ModelSizes, load: Load, way: Way, *, dtype: Dtype) -> int:
    """The most memory that one rank needs by the plan."""
    step = StepSizes(
        num_tokens=max(load.longest, min(load.budget, load.num_sequences * load.longest)),
        longest=load.longest,
        compute_bytes=2 if dtype is Dtype.BFLOAT16 else 4,
        is_recomputed=way.recomputes,
        spread=fsdp2(1) if way.strategy == "FSDP2" else DDP,
        chunk_logits=CHUNK_LOGITS,
    )
    return training_bytes(sizes, step).peak


def _dtype(device: torch.device) -> Dtype:
    return Dtype.BFLOAT16 if device.type == "cuda" else Dtype.FLOAT32


def _learner(model: Qwen2ForCausalLM, load: Load, way: Way, *, ranks: Ranks, device: torch.device) -> Learner:
    algorithm = resolve_algorithm(AlgorithmSpec(steps=load.num_rounds, optimizer=OptimizerSpec()))
    policy = Policy(model, temperature=1.0, dtype=_dtype(device), gradient_checkpointing=way.recomputes)
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
        num_prompt = max(1, length // PROMPT_FRACTION)
        completion = tuple(tokens[num_prompt:])
        rollouts.append(
            Rollout(tuple(tokens[:num_prompt]), completion, (logprob,) * len(completion), (), True, "none")
        )
    advantages = torch.linspace(-1, 1, load.num_sequences)
    return make_batch(rollouts, group_sizes=[len(rollouts)], advantages=advantages, pad_id=0)


@contextlib.contextmanager
def _peak_bytes(device: torch.device) -> Iterator[Callable[[], int]]:
    """Tells the most that was held at one time since the block began, when the way before was gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.init()  # the allocator knows no device before
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
    else:
        with LiveTensors() as live:
            yield lambda: live.peak_bytes


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
