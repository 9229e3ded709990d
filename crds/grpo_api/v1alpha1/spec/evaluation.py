"""`dataset.eval`: prompts that the policy is measured on and not trained on."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.source import DatasetSource


@rule(
    cel="has(self.source) || has(self.split)",
    sentence="dataset.eval names neither a source nor a split, so it would be the prompts that are trained "
    "on: set dataset.eval.split or dataset.eval.source",
)
def evaluation_has_its_own_prompts(source: str | None, split: str | None) -> bool:
    """What is trained on says nothing about other prompts."""
    return source is not None or split is not None


@rule(
    cel="!has(self.samples) || self.samples == 1 || has(self.temperature)",
    sentence="dataset.eval.samples of one prompt would all be the same without dataset.eval.temperature, "
    "which is greedy: set dataset.eval.temperature, or remove dataset.eval.samples",
    field=".samples",
)
def greedy_has_one_sample(samples: int, temperature: float | None) -> bool:
    """A greedy completion is the only one of its prompt; vLLM refuses more."""
    return samples == 1 or temperature is not None


class EvalSpec(ApiModel):
    """Prompts that the policy is measured on every few steps and at the end, with the same rewards. Nothing
    is trained on them. The checkpoint with the best `eval/reward` is kept beside the newest ones, and the
    file BEST names it."""

    rules = (evaluation_has_its_own_prompts, greedy_has_one_sample)

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Evaluate after this many steps, and at the end."""
    source: DatasetSource | None = None
    """As dataset.source, with the same columns; without it dataset.source itself, of which `split` is then
    another split. A `reasoning-gym://` task makes other problems than in training, unless its URL names a
    seed."""
    split: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Split of an `hf://` dataset; `train` if it is left out."""
    max_prompts: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Evaluate with so many prompts, from the first one on; without it with all."""
    samples: Annotated[int, Field(ge=1, le=4096), NOT_STORED] = 1
    """Completions for each prompt, whose rewards are averaged; one if it is left out."""
    temperature: Annotated[float, Field(ge=0.01, le=10)] | None = None
    """Softmax temperature; without it the likeliest token is taken (greedy). Everything else is as in
    `sampling`."""
