"""The text that a policy wrote: what rewards, tables of samples and functions of several turns see."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedTokenizerBase

_TOKENS_OF_A_PREFILL = 32
"""A template ends a prompt with fewer than so many tokens of the completion."""


@dataclass(frozen=True)
class CompletionDecoder:
    """Decodes completions to the last character. Tags such as `<think>` may be special tokens, so only the
    tokens that end a completion are left out."""

    tokenizer: PreTrainedTokenizerBase
    end_ids: frozenset[int]
    """Tokens that end a completion, and padding."""

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None = None
    ) -> "CompletionDecoder":
        """A decoder with the end tokens of the tokenizer, and those of the model's generation_config.json, at
        which engines stop too: a chat model may end its turns with a token that is not the tokenizer's."""
        ends = getattr(generation_config, "eos_token_id", None)
        more = ends if isinstance(ends, list) else [ends]
        known = {tokenizer.eos_token_id, tokenizer.pad_token_id, *more}
        return cls(tokenizer, frozenset(token for token in known if token is not None))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without the tokens at its end that end it."""
        length = len(token_ids)
        while length and token_ids[length - 1] in self.end_ids:
            length -= 1
        return self._decode(token_ids[:length])

    def ending(self, prompt_ids: Sequence[int]) -> str:
        """The last characters of a prompt."""
        return self._decode(prompt_ids[-_TOKENS_OF_A_PREFILL:])

    def _decode(self, token_ids: Sequence[int]) -> str:
        # some tokenizers remove spaces before punctuation, which the policy wrote
        return str(self.tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))
