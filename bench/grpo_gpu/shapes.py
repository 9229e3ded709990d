"""Shapes of models, and what a step of them costs. Pure, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen2 with a head of its own."""

    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int

    @property
    def computed_parameters(self) -> int:
        """Entries of the matrices that every token is multiplied with: all but the embeddings. The head
        counts, although it is applied to completions only."""
        kv_size = self.hidden * self.num_kv_heads // self.num_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv_size
        return self.num_layers * (attention + 3 * self.hidden * self.intermediate) + (
            self.hidden * self.vocab_size
        )

    def operations(self, lengths: list[int]) -> float:
        """Multiplications and additions of the forward and backward pass of sequences of these lengths: 6 for
        each parameter and token, and 6 * hidden * length for each token and layer under a causal mask (PaLM,
        arXiv:2204.02311, appendix B, which has 12 without one)."""
        return sum(
            length * (6.0 * self.computed_parameters + 6.0 * self.num_layers * self.hidden * length)
            for length in lengths
        )


SHAPES = {
    "tiny": Shape(hidden=64, intermediate=128, num_layers=2, num_heads=2, num_kv_heads=2, vocab_size=384),
    # those of Qwen2.5
    "0.5B": Shape(
        hidden=896, intermediate=4864, num_layers=24, num_heads=14, num_kv_heads=2, vocab_size=151936
    ),
    "1.5B": Shape(
        hidden=1536, intermediate=8960, num_layers=28, num_heads=12, num_kv_heads=2, vocab_size=151936
    ),
}

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Operations per second of bfloat16 matrices without sparsity, as NVIDIA's data sheets say, by a part of the
GPU's name (SXM)."""


def peak_of(name: str) -> float | None:
    """The peak of a GPU by its name; None when it is not known."""
    return next((peak for part, peak in PEAKS.items() if part in name and "PCIe" not in name), None)
