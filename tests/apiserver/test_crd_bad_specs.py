"""A real API server refuses a broken GRPOJob at the same field and in the same words as the models, which
tests/api/test_bad_specs.py tries alone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_api.crd import crd
from grpo_api.problems import Problem, problems
from grpo_api.v1alpha1.job import GRPOJob

from ..api.bad_specs import BAD, GOOD, Case, cases_of_every_bound
from .api_server import Jobs, Refusal

pytestmark = pytest.mark.apiserver

NUM_AT_ONCE = 8


def is_said(problem: Problem, refusal: Refusal) -> bool:
    """Unknown fields are refused before anything else is looked at, in the message alone."""
    if problem.message.startswith("unknown field"):
        return problem.message in refusal.message
    return (problem.field, problem.message) in refusal.causes


def judged(jobs: Jobs, cases: Sequence[Case]) -> Iterator[tuple[Case, Refusal | None]]:
    """What a real API server says to each, several at a time."""
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        yield from zip(cases, pool.map(lambda case: jobs.try_create(case.job), cases), strict=True)


def test_the_api_server_refuses_every_bad_spec_with_the_same_sentence(jobs: Jobs):
    wrong = [
        f"{case.what}: {refusal or 'it is accepted'}"
        for case, refusal in judged(jobs, BAD)
        if refusal is None or not is_said(Problem(case.field, case.message), refusal)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_api_server_accepts_every_good_spec_and_fills_in_the_defaults_of_the_models(jobs: Jobs):
    for case in GOOD:
        created = jobs.create(case.job, is_dry_run=True)
        assert created["spec"] == GRPOJob.from_object(case.job).to_object()["spec"], case.what


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.matrix), 4])
def test_every_bound_of_every_field_is_judged_alike_by_the_models_and_the_api_server(jobs: Jobs, share: int):
    """All of them in the matrix, else one of four: the schema is generated from the models."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    num_refused = 0
    for case, refusal in judged(jobs, list(cases_of_every_bound(schema))[::share]):
        found = problems(case.job)
        if not found:
            assert refusal is None, f"{case.what}: only the API server refuses: {refusal}"
            continue
        num_refused += 1
        assert refusal is not None, f"{case.what}: only the models refuse: {found}"
        for problem in found:
            assert is_said(problem, refusal), f"{case.what}: {problem} is not in {refusal}"
    assert num_refused > 300
