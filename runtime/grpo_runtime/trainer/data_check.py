"""What a trainer finds wrong with the data, the tokenizer, the reward functions and the agents of a job,
found without weights and engines.

`python -m grpo_runtime.trainer.data_check` does it with the environment of a trainer pod.
"""

import argparse
import asyncio
import logging
import os
import sys
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
from grpo_runtime.rollouts.agents.environments import agent_options
from grpo_runtime.rollouts.agents.source import Agent
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.training_prompts import load_evaluation_prompts, load_training_prompts

_log = logging.getLogger(__name__)


def check_data(run_config: RunConfig, *, volumes_dir: Path, cache_dir: Path, has_cpu_engines: bool) -> int:
    """The number of prompts that can be trained on. Warnings say what is left out. `cache_dir` is for a
    model that is made.

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
        asyncio.run(_start_agents(run_config, prompts, volumes_dir=volumes_dir))
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


async def _start_agents(run_config: RunConfig, prompts: tuple[Prompt, ...], *, volumes_dir: Path) -> None:
    """Start each agent, which is found and has arguments that there are. Warnings say which may run code
    that the policy writes."""
    columns = prompts[0].columns if prompts else ()
    for environment in run_config.environments or ():
        options = agent_options(environment, run_config, volumes_dir=volumes_dir, columns=columns)
        for warning in warnings_of(options.field, options.code):
            _log.warning("%s", warning)
        # without the data it is not known what it can be called with
        async with Agent(options if prompts else replace(options, columns=None)):
            pass


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
