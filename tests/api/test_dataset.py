"""Which prompts an evaluation has."""

import pytest

from grpo_api.v1alpha1.spec import DatasetSpec, EvalSpec

OF_TRAINING = {"source": "hf://org/math", "split": "train", "subset": "hard", "revision": "v2"}


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        # the same data, of which only another split is read
        ({"split": "test"}, {**OF_TRAINING, "split": "test"}),
        # subset and revision are those of the other source
        ({"source": "hf://org/exam"}, {"source": "hf://org/exam"}),
        ({"source": "hf://org/exam", "split": "test"}, {"source": "hf://org/exam", "split": "test"}),
    ],
)
def test_an_evaluation_reads_the_data_of_training_unless_it_names_its_own(
    evaluation: dict[str, str], expected: dict[str, str]
) -> None:
    columns = {"prompt": "question", "answer": "solution"}
    dataset = DatasetSpec(**OF_TRAINING, **columns, eval=EvalSpec(every_steps=2, **evaluation))
    assert dataset.of_evaluation == DatasetSpec(**expected, **columns)


def test_without_one_there_is_none() -> None:
    assert DatasetSpec(**OF_TRAINING).of_evaluation is None
