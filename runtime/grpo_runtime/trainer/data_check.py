"""What a trainer finds wrong with the data, the tokenizer, the reward functions and the agents of a job,
found without weights and engines.

`python -m grpo_runtime.trainer.data_check` does it with the environment of a trainer pod.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.errors import UserError
from grpo_runtime.model.completion_decoder import CompletionDecoder
from grpo_runtime.model.fit import require_cpu_heads, require_fit
from grpo_runtime.model.language_model import vocabulary_size
from grpo_runtime.model.load import load_config, load_generation_config, load_tokenizer
from grpo_runtime.model.source import tokenizer_folder
from grpo_runtime.process.failure import describe_failure
from grpo_runtime.process.termination import write_termination_message
from grpo_runtime.rewards.kinds import reward_functions
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rollouts.agents.code_check import warnings_of
from grpo_runtime.rollouts.agents.environments import agent_options, chat_model
from grpo_runtime.rollouts.agents.source import Agent
from grpo_runtime.rollouts.agents.trial import try_out
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.training_prompts import load_evaluation_prompts, load_training_prompts

_log = logging.getLogger(__name__)


def check_data(
    run_config: RunConfig,
    *,
    volumes_dir: Path,
    cache_dir: Path,
    has_cpu_engines: bool,
    tell: Callable[[str], None] = _log.info,
) -> int:
    """The number of prompts that can be trained on. Warnings say what is left out, and `tell` gets what
    environments make of what a policy may say. `cache_dir` is for a model that is made.

    Raises UserError with the first fault of the model's configuration, or with the first of the data, the
    first of the reward functions and the first of the agents.
    """
    folder = tokenizer_folder(
        run_config.model, hub=run_config.hub, volumes_dir=volumes_dir, into=cache_dir / "model"
    )
    tokenizer = load_tokenizer(folder)
    config = load_config(folder)
    generation_config = load_generation_config(folder, config)
    require_fit(config, generation_config, tokenizer, run_config)
    if has_cpu_engines:
        require_cpu_heads(config)
    decoder, vocab_size = CompletionDecoder.of(tokenizer, generation_config), vocabulary_size(config)
    prompts: tuple[Prompt, ...] = ()
    faults = []
    try:
        prompts = load_training_prompts(
            run_config, volumes_dir=volumes_dir, decoder=decoder, vocab_size=vocab_size
        ).prompts
        load_evaluation_prompts(run_config, volumes_dir=volumes_dir, decoder=decoder, vocab_size=vocab_size)
    except UserError as error:
        faults.append(str(error))
    try:
        asyncio.run(_try_rewards(run_config, prompts, volumes_dir=volumes_dir, decoder=decoder))
    except UserError as error:
        faults.append(str(error))
    try:
        agents = _try_agents(
            run_config,
            prompts,
            volumes_dir=volumes_dir,
            decoder=decoder,
            vocab_size=vocab_size,
            tell=tell,
        )
        asyncio.run(agents)
    except UserError as error:
        faults.append(str(error))
    if faults:
        raise UserError("; ".join(faults))
    return len(prompts)


async def _try_rewards(
    run_config: RunConfig,
    prompts: tuple[Prompt, ...],
    *,
    volumes_dir: Path,
    decoder: CompletionDecoder,
) -> None:
    """Start the functions of this job's own code and the built-in ones, and call them with the first prompt.
    Services and models are left alone."""
    own = tuple(reward for reward in run_config.rewards if reward.is_code)
    of_own = run_config.model_copy(update={"rewards": own})
    async with RewardPool(reward_functions(of_own, volumes_dir=volumes_dir)) as pool:
        if prompts:
            await Scorer(pool, of_own, decoder=decoder).try_out(prompts[0], step=0)


async def _try_agents(
    run_config: RunConfig,
    prompts: tuple[Prompt, ...],
    *,
    volumes_dir: Path,
    decoder: CompletionDecoder,
    vocab_size: int,
    tell: Callable[[str], None],
) -> None:
    """Play a group of each environment against a script: see `trial.try_out`. Warnings say which may run code
    that the policy writes. Without the data agents are started, as it is not known what they are called
    with."""
    environments = run_config.environments or ()
    columns = prompts[0].columns if prompts else ()
    try:
        model = await chat_model(run_config, decoder=decoder, vocab_size=vocab_size) if environments else None
    except ModuleNotFoundError as error:
        _log.warning(
            "environments are started and not played: %s, which reads calls, is not here", error.name
        )
        model = None
    for environment in environments:
        options = agent_options(environment, run_config, volumes_dir=volumes_dir, columns=columns)
        for warning in warnings_of(options.field, options.code):
            _log.warning("%s", warning)
        prompt = _prompt_of(environment.name, prompts, column=run_config.dataset.environment)
        if model is None or prompt is None:
            async with Agent(options if prompts else replace(options, columns=None)):
                pass
        else:
            await try_out(options, prompt, model=model, tell=tell)


def _prompt_of(environment: str, prompts: tuple[Prompt, ...], *, column: str | None) -> Prompt | None:
    """The first prompt of an environment."""
    return next((each for each in prompts if column is None or each.columns[column] == environment), None)


def main(arguments: list[str]) -> int:
    """Check, and write what is wrong to the termination log; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--termination-log", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        settings = read_trainer_settings(os.environ)
        check_data(
            settings.run_config,
            volumes_dir=settings.volumes_dir,
            cache_dir=settings.cache_dir,
            has_cpu_engines=engine_kind().is_cpu_build(),
        )
    except Exception as error:  # reported by the exit code, as a trainer does
        return write_termination_message(describe_failure(error), termination_log=options.termination_log)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
