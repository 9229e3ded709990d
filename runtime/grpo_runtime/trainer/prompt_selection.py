"""Which prompts of a dataset a run uses, found out before anything is trained."""

import logging
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.answers import accepted_answers
from grpo_runtime.data.prompt import OverlongPromptError, Prompt
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rewards.registry import needs_answers, refused_answers
from grpo_runtime.rollouts.prompting import encode, prompt_room

logger = logging.getLogger(__name__)

OVERLONG = "dataset/overlong_prompts"
"""Prompts of the dataset that are left out of the run because they leave no room for a completion."""

UNREADABLE = "dataset/unreadable_answers"
"""Prompts of the dataset that are left out of the run because a built-in reward cannot read their answer."""
_NUM_NAMED = 5
"""Rows that a warning names, each with the end of its answer."""
_MAX_ANSWER_CHARACTERS = 60


def answerable_prompts(prompts: Sequence[Prompt], *, run_config: RunConfig, field: str) -> tuple[Prompt, ...]:
    """The prompts of which the run's built-in rewards accept an answer. A warning names those that are left
    out. A row without an answer stays: such a reward does not apply to it.

    Raises UserError naming `field`, which the prompts are of, when none is left.
    """
    builtins = [reward.builtin for reward in run_config.rewards]
    if not needs_answers(builtins):
        return tuple(prompts)
    column = run_config.dataset.answer
    answers = {prompt.index: accepted_answers(prompt.columns.get(column)) for prompt in prompts}
    every = {text for accepted in answers.values() for text in accepted}
    refused = refused_answers(every, builtins=builtins)
    left_out = {
        index: accepted[0]
        for index, accepted in answers.items()
        if accepted and all(text in refused for text in accepted)
    }
    if not left_out:
        return tuple(prompts)
    rewards = " and ".join(sorted(set(refused.values())))
    first = ", ".join(
        f"row {index + 1} ({answer[-_MAX_ANSWER_CHARACTERS:]!r})"
        for index, answer in list(left_out.items())[:_NUM_NAMED]
    )
    if len(left_out) == len(prompts):
        raise UserError(
            f"no prompt of {field} is left: {rewards} cannot read an answer in column {column} of any of the "
            f"{len(prompts)} rows; the first: {first}: set dataset.answer to another column, or correct the "
            "answers"
        )
    logger.warning(
        "%s: %d of %d prompts are left out, because %s cannot read their answers in column %s and would "
        "give 0 to the answers themselves; the first of them: %s",
        *(field, len(left_out), len(prompts), rewards, column, first),
    )
    return tuple(prompt for prompt in prompts if prompt.index not in left_out)


def usable_prompts(
    prompts: Sequence[Prompt],
    *,
    run_config: RunConfig,
    decoder: CompletionDecoder,
    vocab_size: int,
    field: str,
) -> tuple[Prompt, ...]:
    """The prompts that leave room for maxTokens, of which a warning says how many do not. Every one is looked
    at before anything is trained: a row that cannot be used would otherwise end the run when its turn comes,
    hours later.

    Raises UserError naming the row that is wrong otherwise, as one that ends with what ends a completion for
    `decoder`, or has a token that is not among the `vocab_size` of the model, and naming `field`, which the
    prompts are of, when none is left.
    """
    usable, overlong = [], []
    for prompt in prompts:
        try:
            token_ids = encode(
                prompt, run_config=run_config, tokenizer=decoder.tokenizer, end_ids=decoder.end_ids
            )
            _require_known(token_ids, prompt=prompt, tokenizer=decoder.tokenizer, vocab_size=vocab_size)
            usable.append(prompt)
        except OverlongPromptError as error:
            overlong.append(error)
    if overlong:
        logger.warning(
            "%s: %d of %d prompts are left out, because they are longer than engine.maxModelLen minus "
            "sampling.maxTokens (%d tokens); the first of them: %s",
            *(field, len(overlong), len(prompts), prompt_room(run_config), overlong[0]),
        )
    if not usable:
        raise UserError(
            f"no prompt of {field} is left: all {len(prompts)} are longer than the {prompt_room(run_config)} "
            "tokens that engine.maxModelLen minus sampling.maxTokens leaves: raise engine.maxModelLen"
        )
    return tuple(usable)


def _require_known(
    token_ids: Sequence[int], *, prompt: Prompt, tokenizer: PreTrainedTokenizerBase, vocab_size: int
) -> None:
    unknown = next((token for token in token_ids if token >= vocab_size), None)
    if unknown is not None:
        name = tokenizer.convert_ids_to_tokens(unknown)
        raise UserError(
            f"row {prompt.index + 1} of the dataset has a prompt with {name} (token {unknown}), which the "
            f"tokenizer has and the model, with {vocab_size}, has not: resize the model's embeddings, or "
            "remove the token from the prompts or the chat template"
        )
