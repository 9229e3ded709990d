"""The models that are saved. Pure, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random Qwen2 with tied embeddings."""

    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int


CASES = {
    case.name: case
    for case in (
        Case(name="tiny", vocabulary=128, hidden=64, intermediate=128, num_layers=2, num_heads=2),
        Case(name="27M", vocabulary=32_000, hidden=512, intermediate=1536, num_layers=3, num_heads=8),
        Case(name="110M", vocabulary=32_000, hidden=768, intermediate=2048, num_layers=12, num_heads=12),
    )
}
