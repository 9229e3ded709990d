"""Every YAML parser reads from the generated YAML what was written."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from grpo_api.yaml_writer import write_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\u2028\u2029\x85\ufeff")
)
DATA = st.recursive(
    SCALARS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(DATA)
def test_what_is_written_is_read_back_by_a_reader_of_yaml_1_1(value: object):
    assert yaml.safe_load(write_yaml(value)) == value


def test_keys_that_a_parser_could_read_as_other_types_are_quoted():
    assert yaml.safe_load(write_yaml({"on": 1, "null": 2, "Yes": 3, "y": 4})) == {
        "on": 1,
        "null": 2,
        "Yes": 3,
        "y": 4,
    }


def test_small_numbers_have_no_exponent():
    assert write_yaml({"learningRate": 1e-6}) == "learningRate: 0.000001\n"
