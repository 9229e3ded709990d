"""What engines are asked for in either mode."""

import math

import pytest

from grpo_api.v1alpha1.spec import EnvironmentSpec, SamplingSpec
from grpo_runtime.rollouts.interface import Probe
from grpo_runtime.rollouts.sampling import probe_error, sampling_checksum, sampling_parameters

PROBE = Probe(token_ids=(4, 5, 6), logprobs=(-1.0, -2.0), tolerance=1e-4)


def test_everything_that_shapes_the_distribution_is_written_out() -> None:
    parameters = sampling_parameters(SamplingSpec(temperature=0.7, max_tokens=9), seed=1)
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


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (SamplingSpec(top_p=0.9), {"top_p": 0.9}),
        (SamplingSpec(top_k=20), {"top_k": 20}),
        (SamplingSpec(min_p=0.1), {"min_p": 0.1}),
        (SamplingSpec(repetition_penalty=1.1), {"repetition_penalty": 1.1}),
        # vLLM finds stop strings in text only
        (SamplingSpec(stop=("END", "\n\n")), {"stop": ["END", "\n\n"], "detokenize": True}),
        (SamplingSpec(regex="[a-d]+"), {"structured_outputs": {"regex": "[a-d]+"}}),
    ],
)
def test_a_field_becomes_the_parameter_of_vllm_and_another_checksum(
    sampling: SamplingSpec, wanted: dict[str, object]
) -> None:
    parameters = sampling_parameters(sampling, seed=1)
    assert parameters == parameters | wanted
    assert sampling_checksum(sampling) != sampling_checksum(SamplingSpec())


def test_what_is_not_trained_has_its_own_parameters_and_no_stop_or_regex_of_the_job() -> None:
    sampling = SamplingSpec(temperature=0.7, top_k=20, stop=("END",), regex="[a-d]+")
    own = '{"temperature": 0, "structured_outputs": {"json_object": true}}'
    found = sampling_parameters(sampling, seed=1, stop=("x",), own=own)
    assert found == sampling_parameters(SamplingSpec(top_k=20), seed=1) | {
        "temperature": 0, "stop": ["x"], "detokenize": True, "structured_outputs": {"json_object": True},
    }  # fmt: skip


def test_what_shapes_the_prompt_is_no_part_of_the_checksum_because_the_prompt_has_its_own() -> None:
    assert sampling_checksum(SamplingSpec(system_prompt="Be brief.")) == sampling_checksum(SamplingSpec())


def test_a_rollout_function_is_part_of_the_checksum_but_for_its_time_limit() -> None:
    def checksum(**fields: object) -> int:
        function = {"function": "play:play", **fields}
        return sampling_checksum(SamplingSpec.model_validate({"rolloutFunction": function}))

    assert checksum(timeoutSeconds=60) == checksum(timeoutSeconds=600)
    assert len({checksum(), checksum(function="play:other"), sampling_checksum(SamplingSpec())}) == 3


def test_where_agents_are_and_how_they_share_is_part_of_the_checksum_and_their_limits_are_not() -> None:
    def checksum(**fields: object) -> int:
        given = {"name": "game", "function": "play:play", **fields}
        return sampling_checksum(SamplingSpec(), environments=[EnvironmentSpec.model_validate(given)])

    code = {"name": "game", "key": "game.py", "function": "play"}
    others = [
        {"function": "play:other"},
        {"weight": 2},
        {"name": "b"},
        *({"function": None, **kind} for kind in ({"configMap": code}, {"tools": {"configMap": code}})),
        *({"function": None, "command": (program,)} for program in ("one", "other")),
    ]
    found = [checksum(), *(checksum(**other) for other in others), sampling_checksum(SamplingSpec())]
    assert len(set(found)) == len(found)
    assert checksum() == checksum(limits={"seconds": 60}, workers=2)


def test_the_error_of_a_probe_is_the_mean_difference() -> None:
    assert probe_error([-1.0, -2.25], probe=PROBE) == pytest.approx(0.125)
    assert probe_error([-1.5, -2.25], probe=PROBE) == pytest.approx(0.375)


@pytest.mark.parametrize("found", [(math.nan, -2.0), (-1.0, math.nan), (-1.0, -math.inf)])
def test_logprobs_that_are_not_numbers_exceed_every_tolerance(found: tuple[float, float]) -> None:
    assert probe_error(found, probe=PROBE) == math.inf


def test_a_probe_with_a_token_too_few_is_no_probe() -> None:
    with pytest.raises(ValueError, match="longer"):
        probe_error([-1.0], probe=PROBE)
