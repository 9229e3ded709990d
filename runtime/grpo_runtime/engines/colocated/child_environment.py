"""The environment of an engine's process, made from that of its rank. Pure."""

from collections.abc import Mapping

from grpo_runtime.engines.arguments import IN_PROCESS_ENVIRONMENT, engine_environment

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_OF_RANKS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
"""Torch's variables for the meeting of the ranks, which the engine is no member of."""


def child_environment(
    environment: Mapping[str, str], *, is_cpu: bool, device_index: int | None
) -> dict[str, str]:
    """`environment` is the rank's, and `device_index` its GPU among those that it sees, None on CPU. The
    engine sees that one only."""
    kept = {name: value for name, value in environment.items() if name not in _OF_RANKS}
    if device_index is not None:
        visible = environment.get(VISIBLE_DEVICES)
        devices = visible.split(",") if visible else None
        kept[VISIBLE_DEVICES] = devices[device_index] if devices else str(device_index)
    return kept | engine_environment(is_cpu=is_cpu) | IN_PROCESS_ENVIRONMENT
