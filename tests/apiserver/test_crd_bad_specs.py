"""A broken GRPOJob is refused by the models and by a real API server, at the same field in the same words."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_api.crd import crd
from grpo_api.problems import Problem, problems
from grpo_api.v1alpha1.job import GRPOJob

from ..api.every_rule import every_rule, every_text_rule
from .api_server import Jobs, Refusal
from .bad_specs import BAD, GOOD, Case, cases_of_every_bound

NUM_AT_ONCE = 8
each_bad = pytest.mark.parametrize("case", BAD, ids=lambda case: case.what)
each_good = pytest.mark.parametrize("case", GOOD, ids=lambda case: case.what)


def is_said(problem: Problem, refusal: Refusal) -> bool:
    """Unknown fields are refused before anything else is looked at, in the message alone."""
    if problem.message.startswith("unknown field"):
        return problem.message in refusal.message
    return (problem.field, problem.message) in refusal.causes


@each_bad
def test_the_models_refuse_a_bad_spec_with_its_sentence_alone(case: Case):
    assert problems(case.job) == [Problem(case.field, case.message)]


@each_good
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


def judged(jobs: Jobs, cases: Sequence[Case]) -> Iterator[tuple[Case, Refusal | None]]:
    """What a real API server says to each, several at a time."""
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        yield from zip(cases, pool.map(lambda case: jobs.try_create(case.job), cases), strict=True)


@pytest.mark.apiserver
def test_the_api_server_refuses_every_bad_spec_with_the_same_sentence(jobs: Jobs):
    wrong = [
        f"{case.what}: {refusal or 'it is accepted'}"
        for case, refusal in judged(jobs, BAD)
        if refusal is None or not is_said(Problem(case.field, case.message), refusal)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.apiserver
def test_the_api_server_accepts_every_good_spec_and_fills_in_the_defaults_of_the_models(jobs: Jobs):
    for case in GOOD:
        created = jobs.create(case.job, is_dry_run=True)
        assert created["spec"] == GRPOJob.from_object(case.job).to_object()["spec"], case.what


@pytest.mark.apiserver
def test_every_bound_of_every_field_is_judged_alike_by_the_models_and_the_api_server(jobs: Jobs):
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    num_refused = 0
    for case, refusal in judged(jobs, list(cases_of_every_bound(schema))):
        found = problems(case.job)
        if not found:
            assert refusal is None, f"{case.what}: only the API server refuses: {refusal}"
            continue
        num_refused += 1
        assert refusal is not None, f"{case.what}: only the models refuse: {found}"
        for problem in found:
            assert is_said(problem, refusal), f"{case.what}: {problem} is not in {refusal}"
    assert num_refused > 300
