"""What is compared: models and batches. Pure, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and the batch of one step. `goal` is the ratio TRL : ours that the default should reach."""

    name: str
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    prompts_per_step: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int
    num_steps: int
    """Measured steps; one more comes before them and warms up."""
    goal: float

    @property
    def num_completions(self) -> int:
        """Completions of a step."""
        return self.prompts_per_step * self.group_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all completions of a step, each with its prompt."""
        return self.num_completions * (self.prompt_tokens + self.completion_tokens)


CASES = {
    # the quick one first: what is left of the time is for the other
    case.name: case
    for case in (
        Case(
            name="tiny",
            hidden=64,
            intermediate=128,
            num_layers=2,
            num_heads=2,
            prompts_per_step=16,
            group_size=8,
            prompt_tokens=3,
            completion_tokens=4,
            num_steps=40,
            goal=1.0,
        ),
        Case(
            name="27M",
            hidden=512,
            intermediate=1536,
            num_layers=8,
            num_heads=8,
            prompts_per_step=4,
            group_size=8,
            prompt_tokens=16,
            completion_tokens=128,
            num_steps=3,
            goal=1.5,
        ),
    )
}
