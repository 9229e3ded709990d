"""The jobs that must learn, and those that must not. This is the only list of them."""

from dataclasses import dataclass, field
from typing import Any

from grpo_learning.gates import WINDOW, Gate

_CONTROL = Gate(each_at_most=0.05)
_LEARNED = Gate(each_at_least=0.95)
TRUTH = "truth"
"""The reward function that measures what was learned, in every case."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job of `builtin://tiny` with one process and one engine, and what it must reach."""

    name: str
    gate: Gate
    dataset: str = "builtin://copy"
    steps: int = 200
    max_tokens: int = 4
    max_model_len: int = 64
    learning_rate: float = 1e-3
    seeds: tuple[int, ...] = (0,)
    truth: str = "char_accuracy"
    truth_weight: float = 1.0
    trained_on: str | None = None
    """A function whose reward is trained on beside `truth`."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    window: int = WINDOW

    def job(self, seed: int) -> dict[str, Any]:
        """The GRPOJob of one run."""
        rewards = [{"name": TRUTH, "builtin": self.truth, "weight": self.truth_weight}]
        if self.trained_on:
            rewards.append({"name": "trained", "function": self.trained_on})
        return {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "learning"},
            "spec": {
                "model": {"source": "builtin://tiny"},
                "dataset": {"source": self.dataset},
                "rewards": rewards,
                "algorithm": {
                    "steps": self.steps,
                    "promptsPerStep": 16,
                    "groupSize": 8,
                    "seed": seed,
                    "optimizer": {"learningRate": self.learning_rate},
                    **self.algorithm,
                },
                "sampling": {"maxTokens": self.max_tokens, **self.sampling},
                "engine": {"maxModelLen": self.max_model_len, "kvCacheMemory": "64Mi"},
                "checkpoint": {"everySteps": self.steps},
                "report": {"samplesEverySteps": 0},
            },
        }


LEARNING_RATES = {
    "dapo": 1e-3,
    "grpo": 1e-3,
    "bnpo": 1e-3,
    "dr_grpo": 1e-3,
    "luspo": 1e-3,
    "cispo": 1e-3,
    "sapo": 1e-3,
    "vespo": 1e-3,
}
"""By `algorithm.lossType`, for the copy task; a test compares the names with those that a job can ask for."""

CASES = (
    *(
        Case(name=f"copy: {loss}", gate=_LEARNED, learning_rate=rate, algorithm={"lossType": loss})
        for loss, rate in LEARNING_RATES.items()
    ),
    Case(
        name="reverse",
        gate=Gate(each_at_least=0.97),
        dataset="builtin://reverse",
        steps=400,
        algorithm={"promptsPerStep": 32},
    ),
    Case(
        name="add",
        gate=Gate(mean_at_least=0.80, each_at_least=0.65),
        dataset="builtin://add",
        steps=400,
        max_tokens=1,
        seeds=(0, 1, 2, 3),
        algorithm={"promptsPerStep": 32},
    ),
    Case(
        name="reasoning-gym",
        gate=Gate(gain_at_least=0.3),
        dataset="reasoning-gym://gcd?min_numbers=3&max_numbers=3&min_value=1&max_value=20&size=200",
        steps=400,
        max_tokens=1,
        max_model_len=128,
        truth="reasoning_gym",
        window=20,
    ),
    Case(name="control: sign flipped", gate=_CONTROL, truth_weight=-1.0),
    Case(
        name="control: random",
        gate=_CONTROL,
        truth_weight=0.0,
        trained_on="grpo_learning.controls:random_reward",
    ),
    Case(
        name="control: constant",
        gate=_CONTROL,
        truth_weight=0.0,
        trained_on="grpo_learning.controls:constant_reward",
    ),
)
