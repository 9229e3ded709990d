"""The regular expressions of a spec. The API server cannot compile them: `grpo-runtime validate`
and the trainer, when it starts, can."""

import re
import warnings
from collections.abc import Iterator, Sequence

from grpo_api.problems import Problem
from grpo_api.v1alpha1.spec import RewardSpec, SamplingSpec
from grpo_runtime.errors import UserError

_NOT_OF_PYTHON = re.compile(r"\\[pPz]|\(\?[a-z-]+\)")
"""What grammars of vLLM may know and Python does not: classes of Unicode, flags in the middle."""


def regex_problems(*, rewards: Sequence[RewardSpec], sampling: SamplingSpec) -> Iterator[Problem]:
    """The regular expressions that do not compile.

    Those of rewards are Python's. What vLLM takes for sampling.regex depends on its backend, so that one is
    judged by Python only where it has nothing that Python does not know.
    """
    for index, reward in enumerate(rewards):
        if reward.pattern is not None and (fault := _fault(reward.pattern)):
            yield _problem(f"rewards[{index}].pattern", fault)
    regex = sampling.regex
    if regex is not None and not _NOT_OF_PYTHON.search(regex) and (fault := _fault(regex)):
        yield _problem("sampling.regex", fault)


def require_regexes(*, rewards: Sequence[RewardSpec], sampling: SamplingSpec) -> None:
    """Raises UserError naming every regular expression that does not compile."""
    found = list(regex_problems(rewards=rewards, sampling=sampling))
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
