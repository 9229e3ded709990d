"""What operator and runtime agree on: names, policy versions and schema versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_api.contract.labels import bounded
from grpo_api.contract.run_config import parse_run_config
from grpo_api.contract.versions import SCHEMA_VERSION, PolicyVersion, SchemaSkewError


@given(st.text(alphabet="abc-.", min_size=1, max_size=300), st.integers(min_value=12, max_value=63))
def test_a_bounded_name_fits(name: str, limit: int):
    assert len(bounded(name, limit)) <= limit


def test_long_names_that_differ_at_the_end_stay_different():
    names = {bounded("a" * 100 + str(number)) for number in range(50)}
    assert len(names) == 50


def test_a_later_attempt_is_newer_than_every_step_of_an_earlier_one():
    assert PolicyVersion(attempt=2, step=0) > PolicyVersion(attempt=1, step=10_000)
    assert PolicyVersion(attempt=1, step=10) > PolicyVersion(attempt=1, step=9)


@given(st.integers(min_value=0), st.integers(min_value=0))
def test_a_policy_version_survives_writing_and_reading(attempt: int, step: int):
    version = PolicyVersion(attempt=attempt, step=step)
    assert PolicyVersion.parse(str(version)) == version


@pytest.mark.parametrize("text", ["", "1", "1.2.3", "a.b", "-1.2", "default"])
def test_something_else_is_no_policy_version(text: str):
    with pytest.raises(ValueError, match="is not a policy version"):
        PolicyVersion.parse(text)


@pytest.mark.parametrize("text", ["{}", '{"schemaVersion": 99, "job": {}}'])
def test_a_run_config_of_another_release_is_refused_before_its_fields_are_read(text: str):
    with pytest.raises(SchemaSkewError, match=f"this side speaks {SCHEMA_VERSION}: use an operator"):
        parse_run_config(text)
