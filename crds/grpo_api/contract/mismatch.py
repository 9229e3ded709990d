"""When trainer and engines give the sampled tokens such different logprobs that something is wrong. Pure."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.asynchronous import AsyncSpec, KvCache
from grpo_api.v1alpha1.spec.sampling import SamplingSpec

MISMATCH_METRIC = "sampling/sampling_logp_difference/mean"
"""Mean absolute difference of the logprobs, in nats, over the tokens of a step that were sampled with the
weights that it begins with: tokens of older weights are meant to differ."""
BOUND_NATS = 0.25
"""Engines that compute in bfloat16 differ from the trainer by about 0.05 nats (standard deviation), a mean of
0.04. Other weights than the trainer's differ by nats."""
STEPS_BELOW = 5
"""So many steps in a row must be below the bound before the mismatch counts as over."""


class Mismatch(ApiModel):
    """A mismatch above the bound, which is not over yet."""

    step: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """The newest step that was above the bound, counted from 1."""
    nats: Annotated[float, Field(ge=0)]
    """The mean difference in that step, in nats."""
    num_below: Annotated[int, Field(ge=0)] = 0
    """Steps in a row since then that were below."""

    @property
    def message(self) -> str:
        """What is wrong and what to do, as a sentence."""
        return (
            f"in step {self.step} the logprobs of trainer and engines differed by {self.nats:.3g} nats on "
            f"average, above the bound of {BOUND_NATS:g}: keep weightSync.verify on, remove what changes the "
            "model from engine.args (such as quantization), or set model.dtype to float32; it is over after "
            f"{STEPS_BELOW} steps below the bound"
        )


def mismatch_after(known: Mismatch | None, *, step: int, nats: float | None) -> Mismatch | None:
    """The mismatch after `step`, whose mean absolute difference is `nats`; None in a step that computed no
    token of its own weights, which says nothing."""
    if nats is None:
        return known
    if nats > BOUND_NATS:
        return Mismatch(step=step, nats=nats)
    if known is None or known.num_below + 1 >= STEPS_BELOW:
        return None
    return known.model_copy(update={"num_below": known.num_below + 1})


def why_unbounded(sampling: SamplingSpec, *, asynchronous: AsyncSpec | None) -> str | None:
    """Why the bound says nothing about a run with this sampling, as a sentence; None where it does.

    Engines report logprobs of the distribution that they sample from, the trainer computes the softmax at
    `sampling.temperature`: where these are meant to be different, so are the logprobs. What new weights go on
    with from a kept cache is of no weights, and engines do not say which tokens these are.
    """
    fields = [f"sampling.{name}" for name in sampling.transforms]
    if not fields:
        if asynchronous is None or asynchronous.kv_cache is not KvCache.KEEP:
            return None
        return (
            "with async.kvCache Keep new weights go on from keys and values of older ones, so the engines' "
            "logprobs differ from the trainer's, and the bound on the difference is off"
        )
    verb = "changes" if len(fields) == 1 else "change"
    return (
        f"{' and '.join(fields)} {verb} the distribution that tokens are sampled from, so the engines' "
        "logprobs differ from the trainer's, and the bound on the difference is off"
    )
