"""`dataset`: where prompts come from, and with `dataset.eval` those that the policy is measured on."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.rule import rule
from grpo_api.source import DatasetSource
from grpo_api.v1alpha1.spec.fields import Revision


@rule(
    cel="has(self.source) || has(self.split)",
    sentence="dataset.eval needs prompts other than those that are trained on: set dataset.eval.split "
    "or dataset.eval.source",
)
def evaluation_has_its_own_prompts(source: str | None, split: str | None) -> bool:
    """Prompts that are trained on show nothing about other prompts."""
    return source is not None or split is not None


@rule(
    cel="!has(self.samples) || self.samples == 1 || has(self.temperature)",
    sentence="dataset.eval.samples above 1 needs dataset.eval.temperature, because without it sampling "
    "is greedy and all samples of a prompt are the same: set dataset.eval.temperature, or "
    "remove dataset.eval.samples",
    field=".samples",
)
def greedy_has_one_sample(samples: int, temperature: float | None) -> bool:
    """A greedy completion is the only one of its prompt; vLLM refuses more."""
    return samples == 1 or temperature is not None


class EvalSpec(ApiModel):
    """Prompts that the policy is evaluated on and not trained on."""

    rules = (evaluation_has_its_own_prompts, greedy_has_one_sample)

    every_steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """Evaluate after every so many steps, and at the end."""
    source: DatasetSource | None = None
    """Where the prompts come from, as in dataset.source and with the same columns. Defaults to dataset.source
    itself, of which `split` must then name another split. A `reasoning-gym://` task makes other problems than
    in training, unless its URL sets a seed."""
    split: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Split of an `hf://` dataset. Defaults to `train`."""
    max_prompts: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """How many prompts to evaluate with, from the first one on. Defaults to all."""
    samples: Annotated[int, Field(ge=1, le=4096), NOT_STORED] = 1
    """Completions for each prompt; their rewards are averaged. Defaults to 1. More than one needs a
    temperature."""
    temperature: Annotated[float, Field(ge=0.01, le=10)] | None = None
    """Softmax temperature. Without it sampling is greedy: each token is the likeliest one. Everything else is
    as in `sampling`."""


@rule(
    cel="!(self.source.startsWith('builtin://') || self.source.startsWith('reasoning-gym://')) || "
    "(self.prompt == 'prompt' && self.answer == 'answer' && !has(self.environment))",
    sentence="dataset.prompt, answer and environment name columns of a file, and a builtin:// or "
    "reasoning-gym:// source has none: remove them",
)
def only_files_have_columns(source: str, prompt: str, answer: str, environment: str | None) -> bool:
    """Only a dataset of files has columns to name."""
    has_columns = not source.startswith(("builtin://", "reasoning-gym://"))
    return has_columns or (prompt == "prompt" and answer == "answer" and environment is None)


@rule(
    cel="self.source.startsWith('hf://') || !(has(self.split) || has(self.subset) || has(self.revision))",
    sentence="dataset.split, dataset.subset and dataset.revision are for hf:// sources: remove them",
)
def only_the_hub_has_splits(source: str, split: str | None, subset: str | None, revision: str | None) -> bool:
    """Splits, subsets and revisions belong to a dataset of the Hub."""
    return source.startswith("hf://") or (split, subset, revision) == (None, None, None)


@rule(
    cel="!has(self.eval) || !has(self.eval.source) || !self.source.startsWith('reasoning-gym://') || "
    "self.eval.source.startsWith('reasoning-gym://')",
    sentence="dataset.eval.source must be a reasoning-gym:// task where dataset.source is one, because "
    "its scorer knows no other prompts: name a task",
    field=".eval.source",
)
def problems_are_evaluated_on_problems(source: str, eval: EvalSpec | None) -> bool:
    """The scorer of a task makes the problem of each prompt again."""
    if eval is None or eval.source is None or not source.startswith("reasoning-gym://"):
        return True
    return eval.source.startswith("reasoning-gym://")


@rule(
    cel="!has(self.eval) || !has(self.eval.split) || "
    "(has(self.eval.source) ? self.eval.source : self.source).startsWith('hf://')",
    sentence="dataset.eval.split is for hf:// sources: remove it, and name other prompts in "
    "dataset.eval.source",
    field=".eval.split",
)
def only_the_hub_has_evaluation_splits(source: str, eval: EvalSpec | None) -> bool:
    """Files have no splits."""
    return eval is None or eval.split is None or (eval.source or source).startswith("hf://")


class DatasetSpec(ApiModel):
    """Where prompts come from."""

    rules = (
        only_files_have_columns,
        only_the_hub_has_splits,
        problems_are_evaluated_on_problems,
        only_the_hub_has_evaluation_splits,
    )

    source: DatasetSource
    """`hf://ORG/NAME` is a dataset of the Hugging Face Hub. `pvc://CLAIM/PATH`, `configmap://NAME/KEY` and
    `file:///PATH` are .jsonl or .parquet files on a PersistentVolumeClaim, in a ConfigMap and in the image.
    `reasoning-gym://TASK?SETTING=VALUE&...` makes its own prompts, which the builtin reward `reasoning_gym`
    scores. `builtin://copy`, `builtin://reverse` and `builtin://add` are tiny tasks that a tiny model learns
    in minutes. `builtin://numbers` are the numbers from 0 to 9999, for agents that make a task of each."""
    split: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Split of an `hf://` dataset. Defaults to `train`."""
    subset: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Subset (configuration) of an `hf://` dataset that has several."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` dataset."""
    prompt: Annotated[str, Field(min_length=1, max_length=253)] = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    answer: Annotated[str, Field(min_length=1, max_length=253)] = "answer"
    """Column with the reference answer, which built-in rewards compare completions with."""
    environment: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Column with the name of the environment whose agent makes the completions of a row. Without it each
    environment gets its share of the prompts, by its weight."""
    shuffle: bool = True
    """Shuffle the prompts anew in every epoch, seeded by algorithm.seed."""
    eval: EvalSpec | None = None
    """Prompts that the policy is evaluated on every few steps and at the end, with the same rewards, and
    never trained on. The checkpoint with the best `eval/reward` is kept in addition to the newest ones, and
    the file BEST names it."""

    @property
    def of_evaluation(self) -> "DatasetSpec | None":
        """The dataset that `eval` describes."""
        if self.eval is None:
            return None
        if self.eval.source is None:
            return self.model_copy(update={"split": self.eval.split, "eval": None})
        other = {"source": self.eval.source, "split": self.eval.split, "subset": None, "revision": None}
        return self.model_copy(update={**other, "eval": None})
