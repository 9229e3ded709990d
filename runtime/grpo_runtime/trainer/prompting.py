"""From the sampler's position to the requests of a step."""

from collections.abc import Sequence, Set

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import ChatOptions, Prompt, encode_prompt
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.rollout.interface import GenerateRequest


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
        needed_by=next(iter(sampling.chat_fields), None),
    )
    return encode_prompt(
        prompt,
        tokenizer=tokenizer,
        max_prompt_tokens=prompt_room(run_config),
        chat_options=chat,
        end_ids=end_ids,
    )


def make_requests(
    prompts: Sequence[Prompt],
    *,
    step: int,
    run_config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    first_place: int = 0,
) -> list[GenerateRequest]:
    """`groupSize` requests for each prompt, group by group, each with the seed of its own place in the run.
    `first_place` groups of the step come before.

    Raises UserError for a prompt that leaves no room for maxTokens.
    """
    requests = []
    for place, prompt in enumerate(prompts, start=first_place):
        token_ids = tuple(encode(prompt, run_config=run_config, tokenizer=tokenizer))
        for sample in range(run_config.algorithm.group_size):
            # the place in the step, not in the dataset: a small dataset repeats within one step
            seed = derive_seed(run_config.algorithm.seed, step=step, prompt_index=place, sample_index=sample)
            requests.append(GenerateRequest(prompt_ids=token_ids, seed=seed))
    return requests


def prompt_room(run_config: RunConfig) -> int:
    """Tokens that a prompt may have."""
    return run_config.engine.max_model_len - run_config.sampling.max_tokens
