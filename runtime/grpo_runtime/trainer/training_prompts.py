"""The prompts that a run is trained and evaluated on: those of the dataset that it can use, found out before
anything is trained; and how many steps algorithm.epochs are with them.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.answers import accepted_answers
from grpo_runtime.data.prompt import OverlongPromptError, Prompt
from grpo_runtime.data.source import load_evaluated_prompts, load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rewards.builtin import needs_answers, refused_answers
from grpo_runtime.rollouts.prompting import encode, prompt_room
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.distributed import Ranks

logger = logging.getLogger(__name__)
OVERLONG = "dataset/overlong_prompts"
"""Prompts of the dataset that are left out of the run because they leave no room for a completion."""
UNREADABLE = "dataset/unreadable_answers"
"""Prompts of the dataset that are left out of the run because a built-in reward cannot read their answer."""
_NUM_NAMED = 5
"""Rows that a warning names, each with the end of its answer."""
_MAX_ANSWER_CHARACTERS = 60


@dataclass(frozen=True)
class TrainingPrompts:
    """All that can be used, in the order of the dataset."""

    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, int]
    """How many were left out, by the metric of the reason."""


def load_training_prompts(
    run_config: RunConfig, *, volumes_dir: Path, decoder: CompletionDecoder, vocab_size: int
) -> TrainingPrompts:
    """Read and check every prompt of the dataset, for a model with `vocab_size` tokens. Raises UserError for
    one that cannot be used."""
    found = load_prompts(
        run_config,
        volumes_dir=volumes_dir,
        needs_answers=needs_answers(reward.builtin for reward in run_config.rewards),
    )
    field = "dataset.source"
    answerable = answerable_prompts(found, run_config=run_config, field=field)
    prompts = usable_prompts(
        answerable, run_config=run_config, decoder=decoder, vocab_size=vocab_size, field=field
    )
    left_out = {UNREADABLE: len(found) - len(answerable), OVERLONG: len(answerable) - len(prompts)}
    return TrainingPrompts(prompts, left_out)


def load_evaluation_prompts(
    run_config: RunConfig, *, volumes_dir: Path, decoder: CompletionDecoder, vocab_size: int
) -> tuple[Prompt, ...]:
    """The prompts of dataset.eval, checked as those of training are; none without it."""
    options, field = run_config.dataset.eval, "dataset.eval"
    if options is None:
        return ()
    try:
        found = load_evaluated_prompts(
            run_config,
            volumes_dir=volumes_dir,
            needs_answers=needs_answers(reward.builtin for reward in run_config.rewards),
        )
        answerable = answerable_prompts(found[: options.max_prompts], run_config=run_config, field=field)
        return usable_prompts(
            answerable, run_config=run_config, decoder=decoder, vocab_size=vocab_size, field=field
        )
    except UserError as error:
        # the sentences name the fields of a dataset, which the evaluation has too
        raise UserError(f"dataset.eval: {error}") from error


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


def settle_total_steps(
    settings: TrainerSettings, *, ranks: Ranks, decoder: CompletionDecoder, vocab_size: int
) -> tuple[TrainerSettings, TrainingPrompts | None]:
    """The settings with the steps of the run written out on every rank, before anything depends on them; and
    the prompts where rank 0 had to count them.

    Raises UserError when there are fewer steps than the warm-up has.
    """
    if settings.run_config.algorithm.epochs is None:
        return settings, None
    counted = None
    if ranks.rank == 0:
        counted = load_training_prompts(
            settings.run_config,
            volumes_dir=settings.volumes_dir,
            decoder=decoder,
            vocab_size=vocab_size,
        )
    num_prompts = len(counted.prompts) if counted else 0
    num_prompts = int(ranks.broadcast(torch.tensor(num_prompts)))
    run_config = with_total_steps(settings.run_config, num_prompts=num_prompts)
    return replace(settings, run_config=run_config), counted


def with_total_steps(run_config: RunConfig, *, num_prompts: int) -> RunConfig:
    """The run with `steps` in place of `epochs`: as many as give every one of `num_prompts` so many turns.
    The last one may begin another epoch."""
    algorithm = run_config.algorithm
    assert algorithm.epochs is not None
    # the number as it is written: 1.1 epochs of 100 prompts are 110 prompts
    steps = math.ceil(Fraction(str(algorithm.epochs)) * num_prompts / algorithm.prompts_per_step)
    if algorithm.optimizer.warmup_steps > steps:
        raise UserError(
            f"algorithm.epochs ({algorithm.epochs:g}) of {num_prompts} prompts are {steps} steps, fewer than "
            f"optimizer.warmupSteps ({algorithm.optimizer.warmup_steps}): lower it or train longer"
        )
    settled = algorithm.model_copy(update={"steps": steps, "epochs": None})
    return run_config.model_copy(update={"algorithm": settled})
