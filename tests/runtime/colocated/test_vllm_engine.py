"""What vLLM's answers become, with the objects that vLLM itself makes of them."""

import itertools

import pytest
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

from grpo_runtime.colocated.rank_engine import Completion
from grpo_runtime.colocated.vllm_engine import completion_of, flat_logprobs
from grpo_runtime.rollout.errors import EngineError


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


def output(token_ids: list[int], logprobs: FlatLogprobs, *, reason: str = "length") -> CompletionOutput:
    return CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=logprobs,
        finish_reason=reason,
    )


@pytest.mark.parametrize(("reason", "is_terminated"), [("stop", True), ("length", False)])
def test_a_completion_has_the_logprob_of_each_of_its_tokens(reason: str, is_terminated: bool) -> None:
    found = completion_of(output([7, 5, 7], flat({7: -0.25}, {5: -3.5}, {7: -1.0}), reason=reason))
    assert found == Completion((7, 5, 7), (-0.25, -3.5, -1.0), is_terminated=is_terminated)


def test_a_completion_that_vllm_gave_up_is_an_error() -> None:
    with pytest.raises(EngineError, match="ended a completion by abort"):
        completion_of(output([7], flat({7: -0.25}), reason="abort"))


@pytest.mark.parametrize(
    "logprobs",
    [flat({7: -0.25}), flat({7: -0.25}, {6: -3.5}), flat({7: -0.25, 6: -2.0}, {5: -3.5})],
    ids=["too few", "of another token", "two at one place"],
)
def test_logprobs_of_other_tokens_than_the_sampled_ones_are_an_error(logprobs: FlatLogprobs) -> None:
    with pytest.raises(EngineError, match="not those of the 2 tokens"):
        completion_of(output([7, 5], logprobs))


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    assert flat_logprobs(flat(None, {5: -3.5}, {7: -1.0}), of=(5, 7)) == [-3.5, -1.0]
