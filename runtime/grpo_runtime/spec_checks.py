"""What of a spec the API server cannot judge: `grpo-runtime validate` and the trainer, when it starts, do."""

import re
import warnings
from collections.abc import Iterator, Sequence

from grpo_api.problems import Problem
from grpo_api.v1alpha1.spec import RewardSpec, SamplingSpec
from grpo_runtime.errors import UserError

_NOT_OF_PYTHON = re.compile(r"\\[pPz]|\(\?[a-z-]+\)")
"""What grammars of vLLM may know and Python does not: classes of Unicode, flags in the middle."""


_ENCODES = "the runtime encodes the text that the template writes"
_CONTINUES = "a chat that ends with a message of the assistant is continued"
_LEAVES_OUT = "prompts that are too long are left out: raise engine.maxModelLen to keep them"
_IS_THE_PROMPT = "the chat is the row's prompt"
_OF_THE_RUNTIME = {
    "add_generation_prompt": f"a generation prompt is always added, and {_CONTINUES}",
    "continue_final_message": _CONTINUES,
    "tokenize": _ENCODES,
    "return_dict": _ENCODES,
    "return_tensors": _ENCODES,
    "tokenizer_kwargs": _ENCODES,
    "return_assistant_tokens_mask": "only what the policy wrote is trained",
    "padding": "prompts are padded where they are trained",
    "truncation": _LEAVES_OUT,
    "max_length": _LEAVES_OUT,
    "conversation": _IS_THE_PROMPT,
    "conversations": _IS_THE_PROMPT,
    "messages": _IS_THE_PROMPT,
    "chat_template": "a template goes into sampling.chatTemplate",
    "tools": "describe tools in sampling.systemPrompt, or write them into sampling.chatTemplate",
    "self": "Python has the name for itself, so give the variable another one",
    "documents": "write documents into the prompts, or into sampling.chatTemplate",
}
"""Names that are no variables of a template but arguments of transformers' `apply_chat_template`, or of what
that calls, and what holds without them."""


def spec_problems(*, rewards: Sequence[RewardSpec], sampling: SamplingSpec) -> Iterator[Problem]:
    """Regular expressions that do not compile, and template arguments that have another meaning.

    Expressions of rewards are Python's. What vLLM takes for sampling.regex depends on its backend, so that
    one is judged by Python only where it has nothing that Python does not know.
    """
    for name in sampling.chat_template_arguments or {}:
        if name in _OF_THE_RUNTIME:
            yield Problem(
                f"spec.sampling.chatTemplateArguments.{name}",
                'Invalid value: "string": is no variable of a chat template: remove it; '
                + _OF_THE_RUNTIME[name],
            )
    for index, reward in enumerate(rewards):
        if reward.pattern is not None and (fault := _fault(reward.pattern)):
            yield _problem(f"rewards[{index}].pattern", fault)
    regex = sampling.regex
    if regex is not None and not _NOT_OF_PYTHON.search(regex) and (fault := _fault(regex)):
        yield _problem("sampling.regex", fault)


def check_spec(*, rewards: Sequence[RewardSpec], sampling: SamplingSpec) -> None:
    """Raises UserError naming every one of `spec_problems`."""
    found = list(spec_problems(rewards=rewards, sampling=sampling))
    if found:
        raise UserError("; ".join(map(str, found)))


def _fault(pattern: str) -> str | None:
    """Why a pattern does not compile; None when it does."""
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _problem(field: str, fault: str) -> Problem:
    fix = "correct it, and write \\ before a character that stands for itself"
    return Problem(f"spec.{field}", f'Invalid value: "string": is no regular expression ({fault}): {fix}')
