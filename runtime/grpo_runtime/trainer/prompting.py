"""From the sampler's position to the requests of a step."""

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.data.prompt import Prompt, encode_prompt
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.rollout.interface import GenerateRequest


def check_prompts(
    prompts: Iterable[Prompt], *, run_config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Look at every prompt before anything is trained: a row that cannot be used would otherwise end the run
    when its turn comes, hours later.

    Raises UserError naming the row.
    """
    for prompt in prompts:
        encode_prompt(prompt, tokenizer=tokenizer, max_prompt_tokens=_room(run_config))


def make_requests(
    prompts: Sequence[Prompt], *, step: int, run_config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> list[GenerateRequest]:
    """`groupSize` requests for each prompt, group by group, each with the seed of its own place in the run.

    Raises UserError for a prompt that leaves no room for maxTokens.
    """
    requests = []
    for place, prompt in enumerate(prompts):
        token_ids = tuple(encode_prompt(prompt, tokenizer=tokenizer, max_prompt_tokens=_room(run_config)))
        for sample in range(run_config.algorithm.group_size):
            # the place in the step, not in the dataset: a small dataset repeats within one step
            seed = derive_seed(run_config.algorithm.seed, step=step, prompt_index=place, sample_index=sample)
            requests.append(GenerateRequest(prompt_ids=token_ids, seed=seed))
    return requests


def _room(run_config: RunConfig) -> int:
    """Tokens that a prompt may have."""
    return run_config.engine.max_model_len - run_config.sampling.max_tokens
