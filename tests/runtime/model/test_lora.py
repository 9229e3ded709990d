"""An adapter in a policy: what it computes, what is trained, what engines get, and what is saved."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from scored_batch import a_batch
from tiny_families import write_tiny_family
from torch.func import functional_call
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel
from whole_checkpoint import write_checkpoint

from grpo_api.contract.run_config import ResolvedLora
from grpo_api.resolve import resolve_algorithm
from grpo_api.v1alpha1.spec import ALL_LINEAR, AlgorithmSpec, Dtype, LoraSpec, OptimizerSpec
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import empty_policy, load_policy, load_tokenizer
from grpo_runtime.model.lora import add_adapter, base_parameters, is_of_adapter, require_same_adapter
from grpo_runtime.model.source import LocalModel
from grpo_runtime.trainer.checkpoint.contents import MODEL, RunState, read_training_state
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.policy import Policy, PolicyWeights
from grpo_runtime.trainer.strategy.ddp import DDPStrategy

LORA = ResolvedLora(rank=4, alpha=6)
SPEC = resolve_algorithm(AlgorithmSpec(steps=10, optimizer=OptimizerSpec(learning_rate=1e-2)))
TOKENS = torch.arange(6, 46).reshape(2, 20)
EVERYWHERE = torch.ones((2, 19), dtype=torch.bool)
HUB_MODEL = "hf://someone/model"


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one family; Qwen3's has a tied head."""
    folder = tmp_path_factory.mktemp("lora") / request.param
    write_tiny_family(folder, family=request.param)
    return folder


def origin(folder: Path, *, commit: str = "c0ffee") -> LocalModel:
    return LocalModel(folder, HUB_MODEL, commit=commit)


def adapted(folder: Path, *, lora: LoraSpec = LORA, dtype: str = "float32", seed: int = 7) -> PreTrainedModel:
    """The model with a fresh adapter."""
    model = load_policy(folder, dtype=dtype)
    add_adapter(model, lora, seed=seed, origin=origin(folder))
    return model


def with_values(model: PreTrainedModel) -> PreTrainedModel:
    """The same model; its adapter is no longer 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def trained(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


def files(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def merged_by_hand(
    weights: dict[str, torch.Tensor], adapter: dict[str, torch.Tensor], lora: LoraSpec = LORA
) -> dict[str, torch.Tensor]:
    """W + alpha / rank x B A of every layer with an adapter, and the other weights as they are."""
    assert lora.alpha is not None
    merged = dict(weights)
    for name, a in adapter.items():
        if ".lora_A." in name:
            b = adapter[name.replace(".lora_A.", ".lora_B.")]
            weight = name.replace(".lora_A.default.", ".")
            merged[weight] = weights[weight] + lora.alpha / lora.rank * (b @ a)
    return merged


@pytest.mark.parametrize("recomputes", [False, True])
def test_its_gradients_are_those_of_the_merged_weights(folder: Path, recomputes: bool) -> None:
    """Of all logprobs, with the same formula written out by hand and differentiated by torch, in float64."""
    model = with_values(adapted(folder)).double()
    policy = Policy(model, temperature=0.7, dtype=Dtype.FLOAT32, gradient_checkpointing=recomputes)
    hidden = policy.model.base_model(input_ids=TOKENS, use_cache=False).last_hidden_state
    found = torch.autograd.grad(
        (policy.model.lm_head(hidden) / 0.7).log_softmax(-1).sum(), list(trained(model).values())
    )

    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    adapter = {name: tensor.detach().clone().requires_grad_() for name, tensor in trained(model).items()}
    merged = merged_by_hand(dict(plain.named_parameters()), adapter)
    logits = functional_call(plain, merged, (TOKENS,), {"use_cache": False}).logits
    wanted = torch.autograd.grad((logits / 0.7).log_softmax(-1).sum(), list(adapter.values()))

    assert len(found) == 2 * 2 * 7
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()
        assert other.norm() > 0
    # and the loss sees it, in the precision of the trainer
    with torch.no_grad():
        own, _ = Policy(with_values(adapted(folder)), temperature=0.7, dtype=Dtype.FLOAT32)(
            TOKENS, EVERYWHERE
        )
        expected = (logits[:, :-1] / 0.7).log_softmax(-1).gather(-1, TOKENS[:, 1:, None])[..., 0]
    torch.testing.assert_close(own.double(), expected, atol=1e-5, rtol=0)


def test_a_fresh_adapter_changes_nothing_and_has_the_values_of_its_seed(folder: Path) -> None:
    torch.manual_seed(0)
    model = adapted(folder)
    torch.manual_seed(1)
    again, other = adapted(folder), adapted(folder, seed=8)
    plain = load_policy(folder, dtype="float32")
    assert torch.equal(model(TOKENS).logits, plain(TOKENS).logits)
    assert trained(model).keys() == trained(other).keys()
    assert all(tensor.equal(trained(again)[name]) for name, tensor in trained(model).items())
    of_a = [name for name in trained(model) if ".lora_A." in name]
    assert not any(trained(model)[name].equal(trained(other)[name]) for name in of_a)
    # two layers of the same shape have values of their own
    assert not trained(model)[of_a[1]].equal(trained(model)[of_a[2]])


def a_learner(
    folder: Path, ranks: Ranks, *, dtype: Dtype = Dtype.FLOAT32, lora: LoraSpec = LORA
) -> tuple[DDPStrategy, Learner]:
    policy = Policy(adapted(folder, lora=lora, dtype=dtype.value), temperature=0.7, dtype=dtype)
    strategy = DDPStrategy(policy, optimizer=SPEC.optimizer, total_steps=SPEC.steps, ranks=ranks)
    return strategy, Learner(strategy, SPEC, micro_batch_tokens=64, ranks=ranks)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_steps_change_the_adapter_alone_and_engines_get_the_sums(
    folder: Path, ranks: Ranks, dtype: Dtype
) -> None:
    strategy, learner = a_learner(folder, ranks, dtype=dtype)
    model = strategy.policy.model
    run_dtype = getattr(torch, dtype.value)
    weights = {name: tensor.to(run_dtype) for name, tensor in files(folder).items()}
    before = {name: tensor.to(run_dtype) for name, tensor in strategy.engine_weights().tensors()}
    assert {name: t.shape for name, t in before.items()} == {name: t.shape for name, t in weights.items()}
    assert all(tensor.equal(weights[name]) for name, tensor in before.items())

    batch = a_batch(strategy)
    for step in range(3):
        learner.update(batch, step=step)
    for name, parameter in base_parameters(model):
        assert parameter.dtype == run_dtype
        assert parameter.equal(weights[name]), name
        assert parameter.grad is None
    assert all(tensor.dtype == torch.float32 and tensor.any() for tensor in trained(model).values())
    # nothing else has moments
    of_what = {name.split("/")[1] for name, _ in strategy.optimizer_state()}
    assert (
        of_what
        == set(trained(model))
        == {name for name, _ in model.named_parameters() if is_of_adapter(name)}
    )

    source = strategy.engine_weights()
    given = dict(source.tensors())
    assert [(spec.name, spec.shape) for spec in source.layout()] == [
        (n, tuple(t.shape)) for n, t in given.items()
    ]
    wanted = merged_by_hand({name: t.float() for name, t in weights.items()}, trained(model))
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.float(), wanted[name], atol=1e-6, rtol=1e-6)
    changed = [name for name, tensor in given.items() if not tensor.to(run_dtype).equal(weights[name])]
    assert len(changed) == 2 * 7
    # the same bits, as often as they are read, and nothing in the model moves
    assert all(tensor.equal(given[name]) for name, tensor in source.tensors())
    assert all(parameter.equal(weights[name]) for name, parameter in base_parameters(model))


def test_a_run_from_a_checkpoint_of_the_adapter_has_the_bits_of_the_run_that_wrote_it(
    folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    strategy, learner = a_learner(folder, ranks)
    batch = a_batch(strategy)
    learner.update(batch, step=0)
    write_checkpoint(
        tmp_path,
        model=strategy.policy.model,
        strategy=strategy,
        tokenizer=load_tokenizer(folder),
        state=RunState(step=1),
    )
    wanted = [learner.update(batch, step=step) for step in (1, 2)]

    resumed, resumed_learner = a_learner(folder, ranks)
    require_same_adapter(resumed.policy.model, folder=tmp_path / MODEL)
    resumed.load(read_training_state(tmp_path))
    assert [resumed_learner.update(batch, step=step) for step in (1, 2)] == wanted
    states = [dict(each.model_state()) | dict(each.optimizer_state()) for each in (resumed, strategy)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def saved(folder: Path, into: Path, ranks: Ranks) -> DDPStrategy:
    """A trained policy whose checkpoint is in `into`."""
    strategy, learner = a_learner(folder, ranks)
    learner.update(a_batch(strategy), step=0)
    write_checkpoint(
        into,
        model=strategy.policy.model,
        strategy=strategy,
        tokenizer=load_tokenizer(folder),
        state=RunState(step=1),
    )
    return strategy


def test_peft_loads_what_a_checkpoint_holds_which_is_the_adapter_alone(
    folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    strategy = saved(folder, tmp_path, ranks)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loaded = PeftModel.from_pretrained(plain, tmp_path / MODEL)
    with torch.no_grad():
        wanted = strategy.policy.model(TOKENS).logits
        assert not torch.allclose(wanted, load_policy(folder, dtype="float32")(TOKENS).logits, atol=1e-3)
        torch.testing.assert_close(loaded(TOKENS).logits, wanted, atol=1e-6, rtol=1e-6)
    assert loaded.peft_config["default"].base_model_name_or_path == "someone/model"
    weights = tmp_path / MODEL / "adapter_model.safetensors"
    assert [path.name for path in (tmp_path / MODEL).glob("*.safetensors")] == [weights.name]
    assert weights.stat().st_size < (folder / "model.safetensors").stat().st_size / 5


def test_a_checkpoint_of_another_adapter_or_another_commit_is_refused(
    folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    saved(folder, tmp_path, ranks)
    moved = load_policy(folder, dtype="float32")
    add_adapter(moved, LORA, seed=7, origin=origin(folder, commit="decade"))
    with pytest.raises(UserError, match=r"for commit c0ffee of the model, and model.source is at decade now"):
        require_same_adapter(moved, folder=tmp_path / MODEL)
    others = {
        r"r 4, and the job asks for 8": ResolvedLora(rank=8, alpha=6),
        r"lora_alpha 6, and the job asks for 12": LoraSpec(rank=4, alpha=12),
        r"target_modules \[.*\], and the job asks for \['q_proj'\]": LoraSpec(
            rank=4, alpha=6, targets=("q_proj",)
        ),
    }
    for says, lora in others.items():
        with pytest.raises(UserError, match=f"has an adapter with {says}"):
            require_same_adapter(adapted(folder, lora=lora), folder=tmp_path / MODEL)
    elsewhere = load_policy(folder, dtype="float32")
    add_adapter(elsewhere, LORA, seed=7, origin=replace(origin(folder), source="hf://another/model"))
    with pytest.raises(
        UserError, match=r"base_model_name_or_path someone/model, and .* asks for another/model"
    ):
        require_same_adapter(elsewhere, folder=tmp_path / MODEL)
    with pytest.raises(UserError, match=r"has an adapter, and the job asks for none: set model.lora"):
        require_same_adapter(load_policy(folder, dtype="float32"), folder=tmp_path / MODEL)
    with pytest.raises(UserError, match=r"has a whole model, and the job asks for an adapter"):
        require_same_adapter(adapted(folder), folder=folder)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_rank_without_weights_has_the_same_tensors(folder: Path, dtype: Dtype) -> None:
    empty = empty_policy(folder, dtype=dtype.value)
    add_adapter(empty, LORA, seed=7, origin=origin(folder))
    described = [
        [
            (name, tensor.shape, tensor.dtype, tensor.requires_grad)
            for name, tensor in model.named_parameters()
        ]
        for model in (empty, adapted(folder, dtype=dtype.value))
    ]
    assert described[0] == described[1]
    assert all(parameter.is_meta for parameter in empty.parameters())


def test_layers_are_named_by_the_ends_of_their_names(folder: Path) -> None:
    model = adapted(folder, lora=ResolvedLora(rank=2, alpha=4, targets=("q_proj", "layers.1.mlp.up_proj")))
    assert [name for name in trained(model) if ".lora_A." in name] == [
        "model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "model.layers.1.self_attn.q_proj.lora_A.default.weight",
        "model.layers.1.mlp.up_proj.lora_A.default.weight",
    ]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nothing", "model.lora.targets \\(nothing\\): Target modules"),
        ("lm_head", "names the embeddings or the head"),
        ("embed_tokens", "names the embeddings or the head"),
        ("input_layernorm", "model.lora.targets \\(input_layernorm\\)"),
    ],
)
def test_targets_that_cannot_have_an_adapter_are_refused(folder: Path, target: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        adapted(folder, lora=ResolvedLora(rank=2, alpha=4, targets=(target,)))


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tower of pictures, whose layers have the names of those of its language model."""
    folder = tmp_path_factory.mktemp("lora") / "gemma3-pictures"
    write_tiny_family(folder, family="gemma3-pictures")
    return folder


@pytest.mark.parametrize(("targets", "num_of_a_layer"), [((ALL_LINEAR,), 7), (("q_proj",), 1)])
def test_of_a_model_that_takes_pictures_only_the_language_model_has_an_adapter_and_steps_train_all_of_it(
    with_pictures: Path, ranks: Ranks, targets: tuple[str, ...], num_of_a_layer: int
) -> None:
    """A text never reaches the rest: DDP would wait for gradients that never come."""
    strategy, learner = a_learner(with_pictures, ranks, lora=ResolvedLora(rank=4, alpha=6, targets=targets))
    model = strategy.policy.model
    of_b = {name for name in trained(model) if ".lora_B." in name}
    assert len(of_b) == 2 * num_of_a_layer
    assert all(name.startswith("model.language_model.layers.") for name in trained(model))
    # the second step is where DDP finds that a gradient of the first never came
    for step in range(2):
        assert learner.update(a_batch(strategy), step=step)["grad_norm"] > 0
    assert all(trained(model)[name].any() for name in of_b)
    assert dict(strategy.engine_weights().tensors()).keys() == files(with_pictures).keys()


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (
            ("fc1", "vision_tower.encoder.layers.0.self_attn.q_proj"),
            r"names no layer of the language model, .*: name linear layers of it, as q_proj",
        ),
        (("q_proj", "lm_head"), "names the embeddings or the head"),
    ],
)
def test_layers_of_a_tower_of_pictures_alone_and_the_head_are_refused(
    with_pictures: Path, targets: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        adapted(with_pictures, lora=ResolvedLora(rank=2, alpha=4, targets=targets))


def test_a_layer_that_keeps_its_weight_transposed_is_merged_transposed(tmp_path: Path) -> None:
    """As those of GPT-2, which have biases besides."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(
            GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=99, n_positions=32)
        ).save_pretrained(tmp_path)
    model = with_values(adapted(tmp_path))
    policy = Policy(model, temperature=1.0, dtype=Dtype.FLOAT32)
    plain = load_policy(tmp_path, dtype="float32")
    weights = dict(PolicyWeights(policy).tensors())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            assert parameter.shape == weights[name].shape
            parameter.copy_(weights[name])
        torch.testing.assert_close(plain(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-5)
