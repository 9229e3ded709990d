"""The tiny model's tokenizer: one token per printable ASCII character."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<|pad|>", "<|eos|>", "<|unk|>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
# How the vocabulary of byte-level BPE spells these two bytes; it has all other characters as they are. Every
# Qwen2 tokenizer is byte-level BPE, and transformers loads ours as one too.
_BYTE_LEVEL = {" ": "Ġ", "\n": "Ċ"}


def char_tokenizer(*, max_length_tokens: int) -> PreTrainedTokenizerFast:
    """A tokenizer of 99 tokens: padding, end of sequence, unknown, newline and printable ASCII.

    It adds no special token by itself: a prompt is exactly its characters.
    """
    spelled = [_BYTE_LEVEL.get(character, character) for character in CHARACTERS]
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *spelled])}
    # without merges every character stays a token
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_length_tokens,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
