"""Models of the families that people train, as small as `builtin://tiny`, each with a byte-pair tokenizer and
a chat template. Everything is made here: nothing is downloaded.

The weights are larger than an initialiser makes them: what a family does beside the usual, such as
soft-capping, then changes logprobs far more than trainer and engines may differ.
"""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3MoeConfig,
)

from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import write_tiny_model

MAX_LENGTH_TOKENS = 512
VOCAB_SIZE = 384
"""Of the models, which are padded beyond the tokenizer, as real ones are."""
_TOKENIZER_SIZE = 340
BOS, EOS, END_OF_TURN = "<bos>", "<eos>", "<end_of_turn>"
_PAD, _START_OF_TURN = "<pad>", "<start_of_turn>"
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ message.role }}\n{{ message.content }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
_SENTENCES = (
    "Say the letter again.",
    "Repeat the letter a four times, and nothing else.",
    "The letters of the alphabet are a, b, c, d, e, f and so on.",
)
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # not hidden_size / num_attention_heads; vLLM's CPU attention supports 32 and 64
    "head_dim": 32,
    "max_position_embeddings": MAX_LENGTH_TOKENS,
    "initializer_range": 0.15,
}
_GEMMA3 = {
    "query_pre_attn_scalar": 16, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def _gemma3_with_pictures(**text: Any) -> Gemma3Config:
    """A configuration that nests that of its language model, beside one of a tower of pictures."""
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    return Gemma3Config(
        text_config=text,
        vision_config={**tower, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        initializer_range=text["initializer_range"],
        **{name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )


# name: configuration class, and what the family has of its own
_FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    # normalised queries and keys; the smaller models of the family have a tied head
    "qwen3": (Qwen3Config, {"tie_word_embeddings": True}),
    "qwen3-untied": (Qwen3Config, {"tie_word_embeddings": False}),
    "llama": (LlamaConfig, {"tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }}),
    # soft-capped attention and logits, a window in every other layer, scaled embeddings, norms around 0
    "gemma2": (Gemma2Config, {
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16,
        "sliding_window": 8,
    }),
    # of that the window, the embeddings and the norms, with normalised queries and keys
    "gemma3": (Gemma3TextConfig, _GEMMA3),
    "gemma3-pictures": (_gemma3_with_pictures, _GEMMA3),
    # four experts, of which each token takes two; transformers keeps those of a layer as one parameter
    "qwen3-moe": (Qwen3MoeConfig, {
        "tie_word_embeddings": True, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }),
    # likewise, under other names in the files
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip
FAMILIES = tuple(_FAMILIES)


def write_tiny_family(into: Path, *, family: str) -> None:
    """Write a random model of this family to the directory `into`, always with the same weights."""
    tokenizer = chat_tokenizer()
    make_config, own = _FAMILIES[family]
    config = make_config(
        **_SHAPE,
        **own,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).float()
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                # else a norm that is missing, or one that is taken for another, would change nothing
                parameter.add_(0.2 * torch.randn(parameter.shape))
    # chat models have several ends, and these so many that a random one reaches them
    ends = [EOS, END_OF_TURN, *string.digits, *string.punctuation]
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ends)
    save_policy(model, tokenizer=tokenizer, into=into)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from a few sentences. It puts BOS before every text, as those of Llama and Gemma
    do, and so does the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_TOKENIZER_SIZE,
        special_tokens=[_PAD, BOS, EOS, _START_OF_TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer=trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=[_START_OF_TURN, END_OF_TURN],
        model_max_length=MAX_LENGTH_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


def write_tied_model(into: Path) -> None:
    """The tiny model with one matrix for embeddings and head, and an odd number of rows to cut."""
    write_tiny_model(into)
    config = AutoConfig.from_pretrained(into)
    config.tie_word_embeddings = True
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(into)
