"""A reward model gives each completion its logit, whatever else is in the batch."""

from pathlib import Path

import pytest
import torch
from pod_builder import run_config
from reward_matrix import put_together
from tiny_families import chat_tokenizer, write_tiny_family
from transformers import AutoModelForSequenceClassification, LlamaConfig

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.classifier import load_classifier
from grpo_runtime.rewards.kinds import reward_functions
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import RewardModel, RewardRequest

PROMPTS = ["Repeat the letter a: ", "Repeat the letter b: ", "Repeat the letter a: "]
COMPLETIONS = ["a", "the letters of the alphabet", "b b b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random reward model."""
    return write_classifier(tmp_path_factory.mktemp("classifier"), num_labels=1)


def write_classifier(folder: Path, *, num_labels: int) -> Path:
    tokenizer = chat_tokenizer()
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=num_labels,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reward_model(folder: Path, *, batch_size: int = 2, num_threads: int = 1) -> RewardModel:
    return RewardModel(
        folder=folder,
        source="hf://org/judge",
        dtype="float32",
        batch_size=batch_size,
        num_threads=num_threads,
    )


def logit_of(folder: Path, text: str) -> float:
    """Of a text that is alone in its batch."""
    ids = chat_tokenizer()(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        return float(AutoModelForSequenceClassification.from_pretrained(folder)(input_ids=ids).logits[0, 0])


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_completion_is_scored_behind_its_prompt_as_it_is_alone(folder: Path, batch_size: int) -> None:
    score = load_classifier(reward_model(folder, batch_size=batch_size))
    expected = [logit_of(folder, prompt + text) for prompt, text in zip(PROMPTS, COMPLETIONS, strict=True)]
    assert score(prompts=PROMPTS, completions=COMPLETIONS) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01


def test_a_model_computes_with_as_many_threads_as_the_run_says(folder: Path, tmp_path: Path) -> None:
    model = {"source": f"file://{folder}", "threads": 3}
    (judge,) = reward_functions(run_config(rewards=[{"name": "judge", "model": model}]), volumes_dir=tmp_path)
    num_threads = torch.get_num_threads()
    try:
        load_classifier(judge.source)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(num_threads)


def test_a_chat_is_scored_through_the_template(folder: Path) -> None:
    prompt = [{"role": "user", "content": "Say the letter again."}]
    answer = [{"role": "assistant", "content": "a"}]
    text = chat_tokenizer().apply_chat_template(prompt + answer, tokenize=False)
    (found,) = load_classifier(reward_model(folder))(prompts=[prompt], completions=[answer])
    assert found == pytest.approx(logit_of(folder, text), abs=1e-5)


def test_a_text_that_is_longer_than_the_model_reads_is_named(folder: Path) -> None:
    score = load_classifier(reward_model(folder))
    with pytest.raises(ValueError, match=r"have 2\d{3} tokens, and the reward model reads 2048"):
        score(prompts=["a"], completions=["0" * 2500])


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    write_tiny_family(tmp_path, family="llama")
    with pytest.raises(UserError, match="the model hf://org/judge lacks 1 of the weights of a classifier"):
        load_classifier(reward_model(tmp_path))


def test_a_classifier_of_two_labels_is_refused(tmp_path: Path) -> None:
    write_classifier(tmp_path, num_labels=2)
    with pytest.raises(UserError, match="has 2 labels, and a reward model has one"):
        load_classifier(reward_model(tmp_path))


async def test_a_job_scores_its_groups_with_the_model_that_it_names(folder: Path, tmp_path: Path) -> None:
    model = {"source": f"file://{folder}", "batchSize": 3}
    run = run_config(rewards=[{"name": "judge", "model": model}])
    (judge,) = reward_functions(run, volumes_dir=tmp_path)
    group = RewardRequest(
        prompts=PROMPTS[:1] * 3,
        completions=COMPLETIONS,
        completion_ids=[[1]] * 3,
        columns={},
        step=0,
        total_steps=1,
    )
    async with RewardPool((judge,)) as pool:
        matrix = put_together(pool, [await pool.submit(group)], step=0)
    expected = [logit_of(folder, PROMPTS[0] + text) for text in COMPLETIONS]
    assert [value for (value,) in matrix.values] == pytest.approx(expected, abs=1e-5)


def test_a_reward_model_that_is_not_there_is_named_with_its_field(tmp_path: Path) -> None:
    run = run_config(rewards=[{"name": "judge", "model": {"source": "pvc://models/judge"}}])
    with pytest.raises(UserError, match=r"^model.source of reward judge \(pvc://models/judge\): there is no"):
        reward_functions(run, volumes_dir=tmp_path)
