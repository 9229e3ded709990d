"""When trainer and engines disagree too much, and when that is over."""

import random

import pytest

from grpo_api.contract.mismatch import BOUND_NATS, STEPS_BELOW, Mismatch, mismatch_after, why_unbounded
from grpo_api.v1alpha1.spec import AsyncSpec, KvCache, SamplingSpec


def after(*nats: float | None) -> Mismatch | None:
    """What is known after steps with these differences."""
    known = None
    for step, value in enumerate(nats, start=1):
        known = mismatch_after(known, step=step, nats=value)
    return known


def test_bfloat16_stays_below_the_bound_and_other_weights_do_not():
    draw = random.Random(0)
    bfloat16 = sum(abs(draw.gauss(0, 0.05)) for _ in range(1000)) / 1000
    assert after(bfloat16) is None
    assert after(2 * bfloat16) is None
    assert after(1.5) == Mismatch(step=1, nats=1.5)


def test_the_newest_step_above_the_bound_is_the_one_that_is_told():
    assert after(3.0, 0.01, 2.0) == Mismatch(step=3, nats=2.0)


def test_it_is_over_only_after_some_steps_in_a_row_below_the_bound():
    assert after(3.0, *[0.01] * (STEPS_BELOW - 1)) == Mismatch(step=1, nats=3.0, num_below=STEPS_BELOW - 1)
    assert after(3.0, *[0.01] * STEPS_BELOW) is None
    flapping = after(*[3.0, *[0.01] * (STEPS_BELOW - 1)] * 2)
    assert flapping is not None and flapping.step == STEPS_BELOW + 1


@pytest.mark.parametrize("known", [(), (3.0,)])
def test_a_step_without_sampled_tokens_says_nothing(known: tuple[float, ...]):
    assert after(*known, *[None] * 9) == after(*known)


def test_the_message_says_step_value_bound_and_what_to_do():
    message = Mismatch(step=12, nats=3.2109).message
    for part in ("step 12", "3.21 nats", f"bound of {BOUND_NATS}", "weightSync.verify", "engine.args"):
        assert part in message


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSpec(temperature=0.5),
        SamplingSpec(top_p=1.0, min_p=0.0, repetition_penalty=1.0),
        SamplingSpec(stop=("END",), system_prompt="Be brief.", apply_chat_template=True),
    ],
)
def test_the_bound_holds_while_tokens_are_sampled_from_the_softmax(sampling: SamplingSpec):
    assert why_unbounded(sampling, asynchronous=None) is None
    assert why_unbounded(sampling, asynchronous=AsyncSpec(max_staleness=1)) is None


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (SamplingSpec(top_p=0.9), "topP"),
        (SamplingSpec(top_k=5), "topK"),
        (SamplingSpec(min_p=0.1), "minP"),
        (SamplingSpec(repetition_penalty=1.1), "repetitionPenalty"),
        (SamplingSpec(regex="a+"), "regex"),
    ],
)
def test_the_bound_is_off_where_a_field_changes_the_distribution(sampling: SamplingSpec, field: str):
    why = why_unbounded(sampling, asynchronous=None)
    assert why is not None and why.startswith(f"sampling.{field} changes the distribution")


def test_the_bound_is_off_where_weights_go_on_from_a_cache_of_others():
    why = why_unbounded(SamplingSpec(), asynchronous=AsyncSpec(max_staleness=1, kv_cache=KvCache.KEEP))
    assert why is not None and why.startswith("with async.kvCache Keep new weights go on from")
