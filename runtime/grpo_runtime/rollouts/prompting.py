"""Turns prompts into requests to engines."""

from collections.abc import Sequence, Set

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import ChatOptions, Prompt, encode_prompt
from grpo_runtime.data.sampler import Drawn
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest


def encode(
    prompt: Prompt,
    *,
    run_config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Set[int] = frozenset(),
) -> list[int]:
    """The token ids of a prompt as the run's engines get them; raises what `encode_prompt` does."""
    sampling = run_config.sampling
    chat = ChatOptions(
        is_applied_to_text=bool(sampling.apply_chat_template),
        system_prompt=sampling.system_prompt,
        template=sampling.chat_template,
        arguments=sampling.chat_template_arguments or {},
        # agents make chats of any prompt
        needed_by=None if run_config.environments else next(iter(sampling.chat_fields), None),
    )
    return encode_prompt(
        prompt,
        tokenizer=tokenizer,
        max_prompt_tokens=prompt_room(run_config),
        chat_options=chat,
        end_ids=end_ids,
    )


def make_groups(
    prompts: Sequence[Prompt],
    *,
    step: int,
    run_config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    first_number: int = 0,
) -> list[Group]:
    """A group of `groupSize` samples of each prompt, which follow `step` finished steps and `first_number`
    groups of this one. Each sample has the seed of its own place in the run.

    Raises UserError for a prompt that leaves no room for maxTokens.
    """
    groups = []
    for number, prompt in enumerate(prompts, start=first_number):
        # the place in the step, not in the dataset: a small dataset repeats within one step
        requests = make_requests(
            prompt,
            count=run_config.algorithm.group_size,
            step=step,
            place=number,
            run_config=run_config,
            tokenizer=tokenizer,
        )
        groups.append(Group(step=step, number=number, prompt=prompt, requests=requests))
    return groups


def make_group_of_run(
    drawn: Drawn, *, step: int, run_config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> Group:
    """A group of `groupSize` samples of a prompt, begun after `step` finished steps, whichever step is
    trained on it. Its seeds are those that it has in synchronous training, where each step is trained on the
    next prompts.

    Raises UserError for a prompt that leaves no room for maxTokens.
    """
    algorithm = run_config.algorithm
    step_of_seeds, place = divmod(drawn.ordinal, algorithm.prompts_per_step)
    requests = make_requests(
        drawn.prompt,
        count=algorithm.group_size,
        step=step_of_seeds,
        place=place,
        run_config=run_config,
        tokenizer=tokenizer,
    )
    return Group(step=step, number=drawn.ordinal, prompt=drawn.prompt, requests=requests)


def make_requests(
    prompt: Prompt,
    *,
    count: int,
    step: int,
    place: int,
    run_config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    is_evaluation: bool = False,
) -> list[GenerateRequest]:
    """Requests for `count` samples of a prompt. Their seeds are those of `step` finished steps and of `place`
    among the prompts that follow them. Raises what `encode` does."""
    token_ids = tuple(encode(prompt, run_config=run_config, tokenizer=tokenizer))
    run_seed = run_config.algorithm.seed
    seeds = (
        derive_seed(run_seed, step=step, prompt_index=place, sample_index=sample) for sample in range(count)
    )
    return [GenerateRequest(token_ids, seed, is_evaluation=is_evaluation) for seed in seeds]


def prompt_room(run_config: RunConfig) -> int:
    """Tokens that a prompt may have."""
    return run_config.engine.max_model_len - run_config.sampling.max_tokens
