"""Regular expressions of a spec that do not compile are named before anything is loaded."""

import pytest

from grpo_api.v1alpha1.spec import RewardSpec, SamplingSpec
from grpo_runtime.errors import UserError
from grpo_runtime.regexes import regex_problems, require_regexes


def reward(pattern: str) -> RewardSpec:
    return RewardSpec.from_object({"name": "found", "builtin": "regex", "pattern": pattern})


def sampling(regex: str) -> SamplingSpec:
    return SamplingSpec.from_object({"regex": regex})


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a", "missing ), unterminated subpattern at position 0"),
        ("*", "nothing to repeat at position 0"),
        ("a{99999999999999999999}", "the repetition number is too large"),
        ("(" * 512 + ")" * 512, "maximum recursion depth"),
    ],
)
def test_a_pattern_that_python_cannot_compile_is_named_with_its_fault(pattern: str, fault: str) -> None:
    exact = RewardSpec.from_object({"name": "copy", "builtin": "exact_match"})
    [problem] = regex_problems(rewards=(exact, reward(pattern)), sampling=sampling("[ab]+"))
    assert problem.field == "spec.rewards[1].pattern"
    assert problem.message.startswith(f'Invalid value: "string": is no regular expression ({fault}')


def test_the_trainer_refuses_to_start_with_every_one_of_them() -> None:
    with pytest.raises(
        UserError, match=r"spec\.rewards\[0\]\.pattern: .*; spec\.sampling\.regex: .*"
    ) as caught:
        require_regexes(rewards=(reward("(a"),), sampling=sampling("[a"))
    assert caught.value.exit_code == 40
    require_regexes(rewards=(reward("a|b"),), sampling=sampling("[[:alpha:]]"))


@pytest.mark.parametrize("regex", [r"\p{L}+", "a(?i)b", r"a\z"])
def test_what_only_a_grammar_of_vllm_knows_is_left_to_it(regex: str) -> None:
    require_regexes(rewards=(), sampling=sampling(regex))
    assert list(regex_problems(rewards=(reward(regex),), sampling=SamplingSpec()))
