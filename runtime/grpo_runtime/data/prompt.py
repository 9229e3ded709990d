"""One prompt of a dataset, and its way into token ids."""

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo_runtime.errors import UserError

Messages = list[dict[str, Any]]
"""A chat: messages with `role` and `content`."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One row of a dataset."""

    index: int
    """Its place in the dataset, from 0."""
    content: str | Messages
    """What the policy is asked: text as it is, or a chat that the tokenizer's template turns into text."""
    columns: dict[str, Any]
    """Every other column of the row by name, the answer among them; reward functions get all of them."""

    @property
    def is_chat(self) -> bool:
        """Whether the content is a list of messages."""
        return not isinstance(self.content, str)


def encode_prompt(prompt: Prompt, *, tokenizer: PreTrainedTokenizerBase, max_prompt_tokens: int) -> list[int]:
    """The token ids that the policy is given for `prompt`.

    Raises UserError, naming the row, when they are none or more than `max_prompt_tokens` (what
    engine.maxModelLen leaves beside sampling.maxTokens), or when a chat meets a tokenizer without template.
    """
    row = f"row {prompt.index + 1} of the dataset"
    if prompt.is_chat:
        if tokenizer.chat_template is None:
            raise UserError(
                f"{row} is a chat but the model's tokenizer has no chat template: use text prompts"
            )
        try:
            token_ids = tokenizer.apply_chat_template(
                prompt.content, add_generation_prompt=True, tokenize=True, return_dict=True
            )["input_ids"]
        except TemplateError as error:
            raise UserError(
                f"{row} is a chat that the model's chat template refuses ({error.message}): change it"
            ) from error
    else:
        token_ids = tokenizer(prompt.content)["input_ids"]
    if not token_ids:
        raise UserError(f"{row} has a prompt without any token: remove the row or fill its prompt")
    if len(token_ids) > max_prompt_tokens:
        raise UserError(
            f"{row} has a prompt of {len(token_ids)} tokens but engine.maxModelLen minus sampling.maxTokens "
            f"leaves {max_prompt_tokens}: raise engine.maxModelLen or remove the row"
        )
    return list(token_ids)
