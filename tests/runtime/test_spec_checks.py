"""What of a spec the API server cannot judge is named before anything is loaded."""

import inspect

import pytest
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from grpo_api.v1alpha1.spec import RewardSpec, SamplingSpec
from grpo_runtime.errors import UserError
from grpo_runtime.spec_checks import check_spec, spec_problems


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
    [problem] = spec_problems(rewards=(exact, reward(pattern)), sampling=sampling("[ab]+"))
    assert problem.field == "spec.rewards[1].pattern"
    assert problem.message.startswith(f'Invalid value: "string": is no regular expression ({fault}')


def test_the_trainer_refuses_to_start_with_every_one_of_them() -> None:
    with pytest.raises(
        UserError, match=r"spec\.rewards\[0\]\.pattern: .*; spec\.sampling\.regex: .*"
    ) as caught:
        check_spec(rewards=(reward("(a"),), sampling=sampling("[a"))
    assert caught.value.exit_code == 40
    check_spec(rewards=(reward("a|b"),), sampling=sampling("[[:alpha:]]"))


@pytest.mark.parametrize("regex", [r"\p{L}+", "a(?i)b", r"a\z"])
def test_what_only_a_grammar_of_vllm_knows_is_left_to_it(regex: str) -> None:
    check_spec(rewards=(), sampling=sampling(regex))
    assert list(spec_problems(rewards=(reward(regex),), sampling=SamplingSpec()))


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("continue_final_message", "a chat that ends with a message of the assistant is continued"),
        ("add_generation_prompt", "a generation prompt is always added"),
        ("tokenize", "encodes the text"),
        ("tools", "describe tools in sampling.systemPrompt"),
    ],
)
def test_a_template_argument_with_a_meaning_of_its_own_is_refused_with_what_to_do(
    name: str, fix: str
) -> None:
    arguments = {"chatTemplateArguments": {"enable_thinking": False, name: True}}
    [problem] = spec_problems(rewards=(), sampling=SamplingSpec.from_object(arguments))
    assert problem.field == f"spec.sampling.chatTemplateArguments.{name}"
    assert "remove it" in problem.message and fix in problem.message


def test_every_argument_of_transformers_that_a_template_does_not_see_is_refused() -> None:
    calls = (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template)
    parameters = [one for call in calls for one in inspect.signature(call).parameters.values()]
    names = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} | {"messages"}
    arguments = {"chatTemplateArguments": dict.fromkeys(names, True)}
    problems = spec_problems(rewards=(), sampling=SamplingSpec.from_object(arguments))
    assert {problem.field.rpartition(".")[2] for problem in problems} == names
    assert "self" in names
