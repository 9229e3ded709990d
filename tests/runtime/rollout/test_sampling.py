"""What engines are asked for in either mode."""

import math

import pytest

from grpo_runtime.rollout.interface import Probe
from grpo_runtime.rollout.sampling import probe_error, sampling_parameters

PROBE = Probe(token_ids=(4, 5, 6), logprobs=(-1.0, -2.0), tolerance=1e-4)


def test_everything_that_shapes_the_distribution_is_written_out() -> None:
    parameters = sampling_parameters(seed=1, temperature=0.7, max_tokens=9)
    neutral = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert parameters == parameters | neutral
    assert (parameters["seed"], parameters["temperature"], parameters["max_tokens"]) == (1, 0.7, 9)


def test_the_error_of_a_probe_is_the_mean_difference() -> None:
    assert probe_error([-1.0, -2.25], probe=PROBE) == pytest.approx(0.125)
    assert probe_error([-1.5, -2.25], probe=PROBE) == pytest.approx(0.375)


@pytest.mark.parametrize("found", [(math.nan, -2.0), (-1.0, math.nan), (-1.0, -math.inf)])
def test_logprobs_that_are_not_numbers_exceed_every_tolerance(found: tuple[float, float]) -> None:
    assert probe_error(found, probe=PROBE) == math.inf


def test_a_probe_with_a_token_too_few_is_no_probe() -> None:
    with pytest.raises(ValueError, match="longer"):
        probe_error([-1.0], probe=PROBE)
