"""Sections of a RunConfig: those of the spec, in which what depends on other fields is written out.

`grpo_api.resolve` makes them. The code that reads them has no defaults of its own.
"""

from grpo_api.v1alpha1.spec.algorithm import AlgorithmSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.lora import LoraSpec
from grpo_api.v1alpha1.spec.loss import RatioLevel
from grpo_api.v1alpha1.spec.model import Dtype, ModelSpec
from grpo_api.v1alpha1.spec.rewards import RewardModelSpec, RewardSpec
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncBackend, WeightSyncSpec


class ResolvedLora(LoraSpec):
    """An adapter whose scale is known."""

    alpha: int


class ResolvedModel(ModelSpec):
    """The policy, with its precision."""

    dtype: Dtype
    lora: ResolvedLora | None = None


class ResolvedAlgorithm(AlgorithmSpec):
    """The algorithm, with what depends on its loss. `clip_high` is None for a loss without an upper clip."""

    ratio_level: RatioLevel


class ResolvedEngine(EngineSpec):
    """vLLM's settings, with what an engine frees."""

    sleep_level: int


class ResolvedWeightSync(WeightSyncSpec):
    """How engines get new weights, by which backend."""

    backend: WeightSyncBackend
    """Never Auto."""


class ResolvedRewardModel(RewardModelSpec):
    """A reward model, with its share of the CPUs."""

    threads: int


class ResolvedReward(RewardSpec):
    """A reward function, with the number of its processes."""

    workers: int
    model: ResolvedRewardModel | None = None
