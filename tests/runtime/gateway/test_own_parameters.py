"""A session that is not trained is sampled as its calls say."""

import json
from typing import Any

import pytest

from grpo_runtime.gateway.own_parameters import read_own_parameters
from grpo_runtime.gateway.refusals import BadFieldError

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"model": "policy", "messages": []}, {}),
        ({"temperature": 0, "top_p": 0.5, "top_k": -1}, {"temperature": 0, "top_p": 0.5, "top_k": -1}),
        ({"presence_penalty": -2, "min_p": 0.1}, {"presence_penalty": -2, "min_p": 0.1}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
        ({"stop_token_ids": [], "allowed_token_ids": [9]}, {"stop_token_ids": [], "allowed_token_ids": [9]}),
        ({"ignore_eos": True, "min_tokens": 5}, {"ignore_eos": True}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            {"structured_outputs": {"json": SCHEMA}},
        ),
    ],
)  # fmt: skip
def test_what_a_request_says_replaces_the_parameters_of_the_job(asked: Any, wanted: Any):
    found = read_own_parameters(asked, vocab_size=10)
    assert (json.loads(found.json), found.seed) == (wanted, None)


def test_a_request_may_have_a_seed_of_its_own():
    found = read_own_parameters({"seed": 3}, vocab_size=10)
    assert (found.json, found.seed) == ("{}", 3)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"temperature": 2.5}, "temperature: it must be a number from 0 to 2"),
        ({"temperature": True}, "temperature: it must be a number from 0 to 2"),
        ({"temperature": float("nan")}, "temperature: it must be a number from 0 to 2"),
        ({"top_p": 0}, "top_p: it must be a number above 0 to 1"),
        ({"top_k": 1.5}, "top_k: it must be a whole number from -1"),
        ({"seed": -1}, "seed: it must be a whole number from 0"),
        ({"logit_bias": [5]}, "logit_bias: it must be an object"),
        ({"logit_bias": {"10": 1}}, "logit_bias: 10 is no token: there are those from 0 to 9"),
        ({"logit_bias": {"x": 1}}, "logit_bias: x is no token"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias: 1{19} is no token"),
        ({"logit_bias": {"5": 101}}, "logit_bias: of token 5 it must be a number from -100 to 100"),
        ({"stop_token_ids": [10]}, "stop_token_ids: there are tokens from 0 to 9"),
        ({"stop_token_ids": 5}, "stop_token_ids: it must be a list of token ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids: it must be a list of token ids"),
        ({"ignore_eos": 1}, "ignore_eos: it must be true or false"),
        ({"response_format": {"type": "grammar"}}, "response_format: text, json_object and json_schema"),
        ({"response_format": "json"}, "response_format: text, json_object and json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format: vLLM cannot sample by this schema",
        ),
    ],
)
def test_what_an_engine_would_refuse_is_refused_before_it_gets_there(asked: Any, sentence: str):
    with pytest.raises(BadFieldError, match=sentence):
        read_own_parameters(asked, vocab_size=10)
