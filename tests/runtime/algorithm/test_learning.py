"""The algorithm trains the tiny model on the copy task, and does not learn the task from a negated reward.

There is no engine and no trainer: sampling is a plain loop over the model, so a failure lies in the
algorithm. The settings are those of examples/copy-disaggregated.yaml.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dense_logprobs import dense_logprobs

from grpo_runtime.algorithm.advantages import compute_advantages
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.types import AdvantageOptions, Denominators, LossInputs, LossOptions
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.data.tasks import copy_task
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rewards.builtin import char_accuracy

PROMPTS_PER_STEP, GROUP_SIZE, MAX_TOKENS, LEARNING_RATE = 16, 8, 4, 1e-3


def mean_rewards(folder: Path, *, weight: float, num_steps: int) -> list[float]:
    """The mean reward of each step when the policy is trained on `weight` times the reward."""
    torch.manual_seed(0)
    write_tiny_model(folder)
    model, tokenizer = load_policy(folder, dtype="float32"), load_tokenizer(folder)
    prompts = tuple(
        Prompt(index=index, content=prompt, columns={"answer": answer})
        for index, (prompt, answer) in enumerate(copy_task())
    )
    sampler = PromptSampler(prompts, seed=0, is_shuffled=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    options = AdvantageOptions(group_size=GROUP_SIZE, weights=(weight,))
    means = []
    for _ in range(num_steps):
        chosen = [prompt for prompt in sampler.next_prompts(PROMPTS_PER_STEP) for _ in range(GROUP_SIZE)]
        prompt_ids = torch.tensor([tokenizer(prompt.content).input_ids for prompt in chosen])
        completions, mask = sample(model, prompt_ids, eos=tokenizer.eos_token_id)
        texts = [
            tokenizer.decode(ids[kept], skip_special_tokens=True)
            for ids, kept in zip(completions, mask, strict=True)
        ]
        rewards = torch.tensor(
            [[char_accuracy(text, p.columns["answer"])] for text, p in zip(texts, chosen, strict=True)]
        )
        means.append(rewards.mean().item())
        logits = model(torch.cat([prompt_ids, completions], dim=1)).logits[:, prompt_ids.shape[1] - 1 : -1]
        logprobs, _ = dense_logprobs(logits, token_ids=completions)
        inputs = LossInputs(
            trainer_logprobs=logprobs,
            advantages=compute_advantages(rewards, options=options).advantages,
            loss_mask=mask,
        )
        output = compute_loss(inputs, options=LossOptions(), denominators=Denominators.of_mask(mask))
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return means


@torch.no_grad()
def sample(
    model: torch.nn.Module, prompt_ids: torch.Tensor, *, eos: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, MAX_TOKENS] completions at temperature 1 and their bool mask, the end of sequence included."""
    ids, is_done, mask = prompt_ids, torch.zeros(len(prompt_ids), dtype=torch.bool), []
    for _ in range(MAX_TOKENS):
        token = torch.multinomial(model(ids).logits[:, -1].softmax(-1), 1)
        mask.append(~is_done)
        is_done = is_done | (token.squeeze(1) == eos)
        ids = torch.cat([ids, token], dim=1)
    return ids[:, prompt_ids.shape[1] :], torch.stack(mask, dim=1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_copy_task_is_learned_in_160_steps(tmp_path: Path) -> None:
    rewards = mean_rewards(tmp_path, weight=1.0, num_steps=160)
    assert rewards[0] < 0.05
    assert sum(rewards[-10:]) / 10 >= 0.95


def test_a_negated_reward_does_not_teach_the_task(tmp_path: Path) -> None:
    # with the right sign the reward is .6 after as many steps
    assert max(mean_rewards(tmp_path, weight=-1.0, num_steps=100)) < 0.05
