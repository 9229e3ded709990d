"""What vLLM's answers become, with the objects that vLLM itself makes of them."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, WeightVersionSpan
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import SamplingSpec
from grpo_runtime.engines.vllm.completions import flat_logprobs, rollout_of, vllm_parameters
from grpo_runtime.engines.vllm.local_engine import VllmEngine
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, Rollout, VersionSpan
from grpo_runtime.rollouts.sampling import sampling_parameters


def flat(*positions: dict[int, float] | None) -> FlatLogprobs:
    """As vLLM adds them up: for each position the token first that stands there."""
    logprobs = FlatLogprobs()
    for position in positions:
        if position is None:
            logprobs.append(None)
        else:
            logprobs.append_fast(
                list(position), list(position.values()), itertools.chain((1,), itertools.count(1)), [None] * 9
            )
    return logprobs


def output(token_ids: list[int], logprobs: FlatLogprobs | None, **fields: Any) -> CompletionOutput:
    return CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=logprobs,
        **{
            "finish_reason": "length",
            "weight_versions": [WeightVersionSpan("1.4", 0, len(token_ids))],
            **fields,
        },
    )


def rollout(found: CompletionOutput) -> Rollout:
    return rollout_of(found, prompt_ids=[1, 2], engine="engine-0")


@pytest.mark.parametrize(("reason", "is_terminated"), [("stop", True), ("length", False)])
def test_a_completion_has_the_logprob_of_each_of_its_tokens(reason: str, is_terminated: bool) -> None:
    spans = [WeightVersionSpan("1.4", 0, 1), WeightVersionSpan("1.5", 1, 3)]
    found = output(
        [7, 5, 7], flat({7: -0.25}, {5: -3.5}, {7: -1.0}), finish_reason=reason, weight_versions=spans
    )
    assert rollout(found) == Rollout(
        prompt_ids=(1, 2),
        completion_ids=(7, 5, 7),
        rollout_logprobs=(-0.25, -3.5, -1.0),
        versions=(VersionSpan(PolicyVersion(1, 4), 0, 1), VersionSpan(PolicyVersion(1, 5), 1, 3)),
        is_terminated=is_terminated,
        engine="engine-0",
    )


def test_a_completion_that_vllm_gave_up_is_an_error() -> None:
    with pytest.raises(EngineError, match="ended a completion by error"):
        rollout(output([7], flat({7: -0.25}), finish_reason="error"))


def test_of_a_completion_that_vllm_aborted_there_is_what_was_sampled() -> None:
    found = rollout(output([7], flat({7: -0.25}), finish_reason="abort"))
    assert (found.is_aborted, found.is_terminated, found.completion_ids) == (True, False, (7,))
    # before its first token it has neither logprobs nor versions
    nothing = rollout(output([], None, finish_reason="abort", weight_versions=None))
    assert (nothing.is_aborted, nothing.completion_ids, nothing.versions) == (True, (), ())


def test_an_engine_in_a_rank_refuses_a_completion_that_vllm_aborted() -> None:
    """Nobody goes on with it there."""

    class AbortingEngine(VllmEngine):
        def _generate(self, requests: Any) -> Any:
            return [(0, SimpleNamespace(outputs=[output([7], flat({7: -0.25}), finish_reason="abort")]))]

    engine = AbortingEngine.__new__(AbortingEngine)
    engine._name = "engine-0"
    engine._sampling = {False: SamplingSpec(max_tokens=4)}
    with pytest.raises(EngineError, match="ended a completion by abort"):
        engine.sample([GenerateRequest((1, 2), seed=1)])


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (None, "does not say which weights sampled"),
        ([], "does not say which weights sampled"),
        ([WeightVersionSpan("default", 0, 1)], "weights that nobody gave it: "),
    ],
)
def test_a_completion_of_unknown_weights_is_an_error(versions: Any, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        rollout(output([7], flat({7: -0.25}), weight_versions=versions))


@pytest.mark.parametrize("logprob", [math.nan, -math.inf])
def test_a_logprob_that_is_no_number_is_an_error(logprob: float) -> None:
    with pytest.raises(EngineError, match="logprob is not finite"):
        rollout(output([7, 5], flat({7: -0.25}, {5: logprob})))


@pytest.mark.parametrize(
    "logprobs",
    [flat({7: -0.25}), flat({7: -0.25}, {6: -3.5}), flat({7: -0.25, 6: -2.0}, {5: -3.5})],
    ids=["too few", "of another token", "two at one place"],
)
def test_logprobs_of_other_tokens_than_the_sampled_ones_are_an_error(logprobs: FlatLogprobs) -> None:
    with pytest.raises(EngineError, match="not those of the 2 tokens"):
        rollout(output([7, 5], logprobs))


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    assert flat_logprobs(flat(None, {5: -3.5}, {7: -1.0}), of=(5, 7)) == [-3.5, -1.0]


def test_parameters_are_those_that_vllm_itself_makes_of_them() -> None:
    given = sampling_parameters(SamplingSpec(max_tokens=9, stop=("x",), regex="a+"), seed=2**63 - 1)
    found = vllm_parameters(given | {"n": 2})
    constraint = StructuredOutputsParams(**given.pop("structured_outputs"))
    assert repr(found) == repr(
        SamplingParams(
            **given,
            n=2,
            structured_outputs=constraint,
            output_kind=RequestOutputKind.FINAL_ONLY,
            flat_logprobs=True,
            skip_clone=True,
        )
    )


def test_parameters_that_came_as_json_have_token_ids_as_text() -> None:
    assert vllm_parameters({"max_tokens": 4, "logit_bias": {"5": 1}}).logit_bias == {5: 1.0}


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 3.5}, {"seed": "1"}, {"logprobs": True}, {"stop": [1]}, {"temprature": 1.0}, {"n": 0}],
)
def test_parameters_of_another_type_and_unknown_ones_are_refused(wrong: dict[str, Any]) -> None:
    """The core of an engine, which reads them in another process, would end."""
    with pytest.raises((ValueError, VLLMClientError)):
        vllm_parameters({"max_tokens": 4, **wrong})
