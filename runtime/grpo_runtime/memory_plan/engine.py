"""Bytes that a worker of an engine needs at least, with the letters of `formulas`. Pure."""

from dataclasses import dataclass

from grpo_runtime.memory_plan.formulas import ModelSizes


@dataclass(frozen=True, kw_only=True)
class EngineSizes:
    """What of an engine decides on its memory."""

    compute_bytes: int
    """c."""
    tensor_parallel: int
    pipeline_parallel: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class EngineBytes:
    """What one worker of an engine needs at least."""

    weights: int
    one_sequence: int
    """KV cache of the longest sequence alone; below it an engine does not start."""


def engine_bytes(model: ModelSizes, engine: EngineSizes) -> EngineBytes:
    """Weights c P, and keys and values of every layer and token, 2 c K L x tokens, shared by the workers of
    all tensor-parallel parts and stages."""
    c, num_workers = engine.compute_bytes, engine.tensor_parallel * engine.pipeline_parallel
    cache = 2 * c * model.key_width * model.num_layers * engine.max_model_len
    return EngineBytes(
        weights=-(-c * model.num_parameters // num_workers), one_sequence=-(-cache // num_workers)
    )
