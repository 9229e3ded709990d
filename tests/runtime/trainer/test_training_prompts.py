"""Which prompts of a dataset a run uses, and how many steps algorithm.epochs are with them."""

import logging

import pod_builder
import pytest
from transformers import GenerationConfig

from grpo_api.v1alpha1.spec import BuiltinReward
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.trainer.training_prompts import answerable_prompts, usable_prompts, with_total_steps

from ..conftest import run_config

ROOM = 256 - 16


def prompts_of(*lengths: int) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(index=index, content="x" * length, columns={}) for index, length in enumerate(lengths)
    )


def usable(*lengths: int) -> tuple[Prompt, ...]:
    tokenizer = char_tokenizer(max_length_tokens=256)
    return usable_prompts(
        prompts_of(*lengths),
        run_config=run_config(),
        decoder=CompletionDecoder.of(tokenizer),
        vocab_size=len(tokenizer),
        field="dataset.source",
    )


def test_a_prompt_that_leaves_no_room_is_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert [prompt.index for prompt in usable(5, ROOM + 1, ROOM, ROOM + 9)] == [0, 2]
    assert "dataset.source: 2 of 4 prompts are left out" in caplog.text
    assert "row 2 of the dataset has a prompt of 241 tokens" in caplog.text


def test_nothing_is_said_while_every_prompt_has_room(caplog: pytest.LogCaptureFixture) -> None:
    assert len(usable(1, 2)) == 2
    assert not caplog.records


def test_a_dataset_without_any_prompt_that_fits_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"no prompt of dataset\.source is left: all 2 .* engine\.maxModelLen"
    ):
        usable(ROOM + 1, ROOM + 1)


def test_a_prompt_with_a_token_that_the_model_has_not_is_refused_with_row_and_token() -> None:
    tokenizer = char_tokenizer(max_length_tokens=256)
    vocab_size = len(tokenizer)
    tokenizer.add_tokens(["<tool>"])
    prompts = (*prompts_of(1), Prompt(index=1, content="<tool> a", columns={}))
    with pytest.raises(
        UserError, match=rf"^row 2 .* with <tool> \(token {vocab_size}\), which the tokenizer has and"
    ):
        usable_prompts(
            prompts,
            run_config=run_config(),
            decoder=CompletionDecoder.of(tokenizer),
            vocab_size=vocab_size,
            field="dataset.source",
        )


def test_a_prompt_that_ends_where_the_models_completions_end_is_refused() -> None:
    tokenizer = char_tokenizer(max_length_tokens=256)
    tokenizer.add_tokens(["<|im_end|>"])
    ends = GenerationConfig(eos_token_id=[tokenizer.convert_tokens_to_ids("<|im_end|>")])
    with pytest.raises(UserError, match=r"^row 1 of the dataset has a prompt that ends with <\|im_end\|>"):
        usable_prompts(
            (Prompt(index=0, content="a <|im_end|>", columns={}),),
            run_config=run_config(),
            decoder=CompletionDecoder.of(tokenizer, ends),
            vocab_size=len(tokenizer),
            field="dataset.source",
        )


def graded(*answers: str | list[str] | None, field: str = "dataset.source") -> list[int]:
    """The rows that are left of a dataset with these answers, whose job has math_verify."""
    run = run_config()
    reward = run.rewards[0].model_copy(update={"builtin": BuiltinReward.MATH_VERIFY})
    prompts = tuple(
        Prompt(index=index, content="x", columns={"answer": answer}) for index, answer in enumerate(answers)
    )
    with_it = run.model_copy(update={"rewards": (reward,)})
    return [prompt.index for prompt in answerable_prompts(prompts, run_config=with_it, field=field)]


def test_a_row_whose_answer_is_not_paid_for_itself_is_left_out_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    assert graded("6 - 5i", r"\frac{1}{2}}", None, "", "6 - 5i") == [0, 2, 4]
    assert "dataset.source: 2 of 5 prompts are left out, because math_verify cannot read" in caplog.text
    assert r"row 2 ('\\frac{1}{2}}'), row 4 ('')" in caplog.text


def test_a_row_stays_while_one_of_its_accepted_answers_can_be_read() -> None:
    assert graded(["}", "3"], ["}", ""], "3") == [0, 2]


def test_a_warning_names_the_first_five_rows_and_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert graded("1", *[""] * 9) == [0]
    assert "9 of 10 prompts" in caplog.text
    assert "row 6 ('')" in caplog.text and "row 7" not in caplog.text


def test_a_dataset_of_which_no_answer_can_be_read_is_refused_with_its_column() -> None:
    with pytest.raises(
        UserError,
        match=r"no prompt of dataset\.eval is left: math_verify .* column answer of any of the 2 rows",
    ):
        graded("", "}", field="dataset.eval")


def test_answers_are_left_alone_where_no_reward_reads_them() -> None:
    prompts = (Prompt(index=0, content="x", columns={"answer": ""}),)
    assert answerable_prompts(prompts, run_config=run_config(), field="dataset.source") == prompts


@pytest.mark.parametrize(
    ("epochs", "num_prompts", "steps"),
    [(1, 16, 4), (1, 17, 5), (2, 17, 9), (0.5, 16, 2), (0.1, 3, 1), (1.1, 40, 11)],
)
def test_every_prompt_has_its_turn_so_often_and_the_last_step_may_begin_another_epoch(
    epochs: float, num_prompts: int, steps: int
) -> None:
    run = pod_builder.run_config(algorithm={"epochs": epochs, "promptsPerStep": 4})
    assert run.total_steps == 0
    assert with_total_steps(run, num_prompts=num_prompts).total_steps == steps


def test_a_warm_up_that_is_longer_than_the_epochs_is_refused_once_they_are_counted() -> None:
    run = pod_builder.run_config(
        algorithm={"epochs": 2, "promptsPerStep": 4, "optimizer": {"learningRate": 1e-3, "warmupSteps": 5}}
    )
    with pytest.raises(
        UserError, match=r"epochs \(2\) of 8 prompts are 4 steps, fewer than optimizer\.warmup"
    ):
        with_total_steps(run, num_prompts=8)
    assert with_total_steps(run, num_prompts=9).total_steps == 5
