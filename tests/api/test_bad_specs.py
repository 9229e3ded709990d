"""The models refuse a broken GRPOJob with one sentence at the right field, and the table of broken ones has
one for every rule."""

import pytest

from grpo_api.problems import Problem, problems

from .bad_specs import BAD, GOOD, Case
from .every_rule import every_rule, every_text_rule


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.what)
def test_the_models_refuse_a_bad_spec_with_its_sentence_alone(case: Case):
    assert problems(case.job) == [Problem(case.field, case.message)]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.what)
def test_the_models_accept_a_good_spec(case: Case):
    assert problems(case.job) == []


def test_every_rule_refuses_something_in_the_table():
    said = [case.message for case in BAD]
    for rule in every_rule():
        # without its numbers, which are those of the case
        beginning = rule.sentence.partition(" ({")[0]
        assert any(beginning in message for message in said), f"no bad spec breaks: {rule.sentence}"


def test_every_rule_about_a_text_refuses_something_in_the_table():
    for rule in every_text_rule():
        beginning = rule.sentence.partition("{self}")[0]
        assert any(f'"string": {beginning}' in case.message for case in BAD), rule.sentence
