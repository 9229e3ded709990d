"""`dataset`: where prompts come from."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import rule
from grpo_api.source import DatasetSource
from grpo_api.v1alpha1.spec.evaluation import EvalSpec
from grpo_api.v1alpha1.spec.fields import Revision


@rule(
    cel="!(self.source.startsWith('builtin://') || self.source.startsWith('reasoning-gym://')) || "
    "(self.prompt == 'prompt' && self.answer == 'answer')",
    sentence="dataset.prompt and dataset.answer name columns of a file, and a builtin:// or reasoning-gym:// "
    "source has none: remove them",
)
def only_files_have_columns(source: str, prompt: str, answer: str) -> bool:
    """Only a dataset of files has columns to name."""
    has_columns = not source.startswith(("builtin://", "reasoning-gym://"))
    return has_columns or (prompt == "prompt" and answer == "answer")


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
    sentence="dataset.eval.source must be a reasoning-gym:// task where dataset.source is one, because its "
    "scorer knows no other prompts: take a task",
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
    `reasoning-gym://TASK?SETTING=VALUE&...` makes its own prompts and has its own scorer. `builtin://copy`,
    `builtin://reverse` and `builtin://add` are tiny tasks that a tiny model learns in minutes."""
    split: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Split of an `hf://` dataset; `train` if it is left out."""
    subset: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Subset (configuration) of an `hf://` dataset that has several."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` dataset."""
    prompt: Annotated[str, Field(min_length=1, max_length=253)] = "prompt"
    """Column with the prompt: a string, or a list of chat messages."""
    answer: Annotated[str, Field(min_length=1, max_length=253)] = "answer"
    """Column with the reference answer that built-in rewards compare with."""
    shuffle: bool = True
    """Shuffle in every epoch, by algorithm.seed."""
    eval: EvalSpec | None = None
    """Prompts that the policy is measured on every few steps and not trained on."""

    @property
    def of_evaluation(self) -> "DatasetSpec | None":
        """The dataset that `eval` describes."""
        if self.eval is None:
            return None
        if self.eval.source is None:
            return self.model_copy(update={"split": self.eval.split, "eval": None})
        other = {"source": self.eval.source, "split": self.eval.split, "subset": None, "revision": None}
        return self.model_copy(update={**other, "eval": None})
