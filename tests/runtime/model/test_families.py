"""Qwen3, Llama, Gemma and Mixtral as policies: loaded, scored, trained, saved and resumed, without an engine.

That they train and sync with real engines: tests/runtime/trainer/test_families_on_engines.py.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from dense_logprobs import dense_logprobs
from safetensors import safe_open
from safetensors.torch import load_file
from scored_batch import a_batch
from tiny_families import FAMILIES, VOCAB_SIZE, write_tiny_family
from transformers import AutoModelForCausalLM, Gemma3Config, PreTrainedModel
from whole_checkpoint import write_checkpoint

from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import AlgorithmSpec, Dtype, OptimizerSpec
from grpo_runtime.data.prompt import Prompt, encode_prompt
from grpo_runtime.errors import UserError
from grpo_runtime.model.language_model import freeze_other_parts
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.weights import named_weights, weight_shapes
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.checkpoint.contents import RunState, read_training_state
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy
from grpo_runtime.trainer.strategy.registry import STRATEGIES

TEMPERATURE = 0.7
SPEC = resolve_algorithm(AlgorithmSpec(steps=10, optimizer=OptimizerSpec(learning_rate=1e-3)))
TOKENS = torch.arange(6, 46).reshape(2, 20)
_SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
EVERYWHERE = torch.ones((2, 19), dtype=torch.bool)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one family."""
    folder = tmp_path_factory.mktemp("families") / request.param
    write_tiny_family(folder, family=request.param)
    return folder


def a_policy(folder: Path) -> Policy:
    return Policy(load_policy(folder, dtype=MASTER_DTYPE), temperature=TEMPERATURE, dtype=Dtype.FLOAT32)


def test_engines_get_the_names_and_shapes_of_the_files_and_a_tied_head_once(folder: Path) -> None:
    policy = load_policy(folder, dtype=MASTER_DTYPE)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    found = [(name, tuple(weight.shape)) for name, weight in named_weights(policy)]
    assert found == list(weight_shapes(policy))
    assert sorted(found) == sorted(saved.items())
    has_head = any(name.endswith("lm_head.weight") for name in saved)
    assert has_head is not policy.config.tie_word_embeddings
    [embeddings] = [shape for name, shape in saved.items() if name.endswith("embed_tokens.weight")]
    assert embeddings == (VOCAB_SIZE, 64)


def plain_model(folder: Path) -> PreTrainedModel:
    """The model as transformers computes it with every formula of its attention written out, in float64."""
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
        local_files_only=True,
    )
    return model.eval()


def gradient_of(logprobs: torch.Tensor, model: PreTrainedModel, *, names: Iterable[str]) -> torch.Tensor:
    """Of their sum and these parameters, as one vector in float64."""
    parts = torch.autograd.grad(logprobs.sum(), [model.get_parameter(name) for name in names])
    return torch.cat([part.double().flatten() for part in parts])


def trained_names(model: PreTrainedModel) -> list[str]:
    """All parameters, but for a tower of pictures."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_the_loss_sees_what_the_family_computes_at_the_sampling_temperature(folder: Path) -> None:
    plain, policy = plain_model(folder), a_policy(folder)
    logits = plain(input_ids=TOKENS, use_cache=False).logits[:, :-1]
    wanted, entropies = dense_logprobs(logits, token_ids=TOKENS[:, 1:], temperature=TEMPERATURE)
    found, found_entropies = policy(TOKENS, EVERYWHERE)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(found_entropies.double(), entropies, atol=1e-5, rtol=0)
    names = trained_names(policy.model)
    gradient = gradient_of(wanted, plain, names=names)
    assert (gradient_of(found, policy.model, names=names) - gradient).norm() <= 1e-5 * gradient.norm()
    # the distribution is far from an even one, which would hide mistakes
    assert wanted.std() > 0.5


def test_a_saved_policy_is_the_same_policy_and_tells_engines_the_same_ends(
    folder: Path, tmp_path: Path
) -> None:
    policy = a_policy(folder)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    save_policy(policy.model, tokenizer=load_tokenizer(folder), into=tmp_path)
    found, wanted = (each(TOKENS, EVERYWHERE)[0] for each in (a_policy(tmp_path), policy))
    assert torch.equal(found, wanted)
    first, second = (
        json.loads((place / "generation_config.json").read_text())["eos_token_id"]
        for place in (folder, tmp_path)
    )
    assert first == second
    assert len(set(first)) > 40


def test_a_chat_becomes_one_text_by_the_template_and_begins_once(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    chat = Prompt(index=0, content=[{"role": "user", "content": "Repeat the letter ä."}], columns={})
    token_ids = encode_prompt(chat, tokenizer=tokenizer, max_prompt_tokens=64)
    assert tokenizer.decode(token_ids) == (
        "<bos><start_of_turn>user\nRepeat the letter ä.<end_of_turn>\n<start_of_turn>assistant\n"
    )
    # words are tokens, which the template does not undo
    assert {"Repeat", "Ġthe", "Ġletter"} < set(tokenizer.convert_ids_to_tokens(token_ids))
    text = Prompt(index=0, content="Repeat", columns={})
    assert encode_prompt(text, tokenizer=tokenizer, max_prompt_tokens=2)[0] == token_ids[0]


def test_a_token_that_the_model_has_and_the_tokenizer_has_not_is_no_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer) < VOCAB_SIZE
    known = tokenizer("a b").input_ids
    assert tokenizer.decode([*known, VOCAB_SIZE - 1], skip_special_tokens=True) == "a b"


def a_learner(folder: Path, ranks: Ranks) -> tuple[DDPStrategy, Learner]:
    strategy = DDPStrategy(a_policy(folder), optimizer=SPEC.optimizer, total_steps=SPEC.steps, ranks=ranks)
    return strategy, Learner(strategy, SPEC, micro_batch_tokens=64, ranks=ranks)


def surrogate(strategy: DDPStrategy, batch: Batch) -> float:
    """What a policy gradient lowers: the mean of -advantage times logprob over all completion tokens."""
    with torch.no_grad():
        logprobs, _ = strategy.score(batch.token_ids, batch.loss_mask)
    return float(-(batch.advantages[:, None] * logprobs)[batch.loss_mask].mean())


def test_each_step_of_training_lowers_the_loss(folder: Path, ranks: Ranks) -> None:
    strategy, learner = a_learner(folder, ranks)
    batch = a_batch(strategy)
    losses = [surrogate(strategy, batch)]
    for step in range(3):
        metrics = learner.update(batch, step=step)
        assert metrics["grad_norm"] > 0
        losses.append(surrogate(strategy, batch))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.05


def trained_state(strategy: DDPStrategy) -> dict[str, torch.Tensor]:
    """Copies of the weights and of the optimizer's state."""
    weights = dict(strategy.policy.model.named_parameters())
    return {
        name: tensor.detach().clone() for name, tensor in (weights | dict(strategy.optimizer_state())).items()
    }


def test_a_run_from_a_checkpoint_has_the_bits_of_the_run_that_wrote_it(
    folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    strategy, learner = a_learner(folder, ranks)
    batch = a_batch(strategy)
    learner.update(batch, step=0)
    model = strategy.policy.model
    tokenizer = load_tokenizer(folder)
    write_checkpoint(tmp_path, model=model, strategy=strategy, tokenizer=tokenizer, state=RunState(step=1))
    save_policy(model, tokenizer=tokenizer, into=tmp_path / "theirs")
    mine, theirs = (
        load_file(path / "model.safetensors") for path in (tmp_path / "model", tmp_path / "theirs")
    )
    assert mine.keys() == theirs.keys(), "a tied weight is there once"
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    wanted = [learner.update(batch, step=step) for step in (1, 2)]

    resumed, resumed_learner = a_learner(folder, ranks)
    resumed.load(read_training_state(tmp_path))
    assert [resumed_learner.update(batch, step=step) for step in (1, 2)] == wanted
    found = trained_state(resumed)
    for name, tensor in trained_state(strategy).items():
        assert torch.equal(found[name], tensor), name


def test_what_a_model_has_for_pictures_stays_as_it_is_and_is_saved_and_given_to_engines_with_the_rest(
    ranks: Ranks, tmp_path: Path
) -> None:
    """A text never reaches it: DDP would wait for gradients that never come."""
    write_tiny_family(tmp_path / "model", family="gemma3-pictures")
    strategy, learner = a_learner(tmp_path / "model", ranks)
    model = strategy.policy.model
    assert strategy.vocab_size == VOCAB_SIZE
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for step in range(2):
        learner.update(a_batch(strategy), step=step)
    changed = {name for name, parameter in model.named_parameters() if not parameter.equal(before[name])}
    assert changed == set(trained_names(model))
    others = {name for name in before if "vision_tower" in name or "multi_modal_projector" in name}
    assert others == before.keys() - changed
    moments = {name.partition("/")[2] for name, _ in strategy.optimizer_state()}
    assert moments == changed
    given = {name for name, _ in strategy.engine_weights().tensors()}
    assert any("vision_tower" in name for name in given)
    assert given == load_file(tmp_path / "model" / "model.safetensors").keys()


def test_zero_which_cuts_every_weight_refuses_a_model_of_which_a_part_stays(
    ranks: Ranks, tmp_path: Path
) -> None:
    write_tiny_family(tmp_path, family="gemma3-pictures")
    policy = a_policy(tmp_path)
    with pytest.raises(UserError, match=r"trainer\.strategy ZeRO2 .* set trainer\.strategy to DDP or FSDP2"):
        STRATEGIES["ZeRO2"](policy, optimizer=SPEC.optimizer, total_steps=SPEC.steps, ranks=ranks)


def test_a_head_of_its_own_is_trained_where_the_language_model_is_a_part() -> None:
    config = Gemma3Config(
        text_config={**_SMALL, "vocab_size": 99, "num_key_value_heads": 1, "head_dim": 32},
        vision_config={**_SMALL, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    freeze_other_parts(model)
    assert model.lm_head.weight.requires_grad
    assert not model.model.multi_modal_projector.mm_input_projection_weight.requires_grad
