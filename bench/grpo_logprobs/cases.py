"""The models and micro-batches that are compared. Pure, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random Qwen2 with tied embeddings, and a micro-batch."""

    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_sequences: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the micro-batch."""
        return self.num_sequences * (self.prompt_tokens + self.completion_tokens)


CASES = {
    case.name: case
    for case in (
        Case(
            name="tiny",
            vocabulary=128,
            hidden=64,
            intermediate=128,
            num_layers=2,
            num_heads=2,
            num_sequences=128,
            prompt_tokens=4,
            completion_tokens=4,
        ),
        Case(
            name="27M",
            vocabulary=32_000,
            hidden=512,
            intermediate=1536,
            num_layers=3,
            num_heads=8,
            num_sequences=16,
            prompt_tokens=16,
            completion_tokens=112,
        ),
        # 4.6 GiB for the logits of all tokens in float32, several times
        Case(
            name="152k",
            vocabulary=151_936,
            hidden=896,
            intermediate=4864,
            num_layers=2,
            num_heads=14,
            num_sequences=16,
            prompt_tokens=64,
            completion_tokens=448,
        ),
    )
}
