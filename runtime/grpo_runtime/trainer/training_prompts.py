"""The prompts that a run is trained and evaluated on, and how many steps algorithm.epochs are with them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.source import load_evaluated_prompts, load_prompts
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.rewards.registry import needs_answers
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.prompt_selection import OVERLONG, UNREADABLE, answerable_prompts, usable_prompts


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
