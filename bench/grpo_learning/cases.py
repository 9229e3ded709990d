"""The jobs that must learn, and those that must not. This is the only list of them."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_bench.made_policy import policy_folder
from grpo_learning.gates import WINDOW, Gate

_CONTROL = Gate(each_at_most=0.05)
_LEARNED = Gate(each_at_least=0.95)
TRUTH = "truth"
"""The reward function that measures what was learned, in every case."""
CHAT_MODEL, CHAT_DATASET = "model", "train.jsonl"


def chat_folder() -> Path:
    """Where the chat policy and its questions are once they are made. The name changes with what makes
    them."""
    return policy_folder("chat-policy", maker=Path(__file__).with_name("chat_policy.py"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job of `builtin://tiny`, or of the chat policy, with one process and one engine, and what it must
    reach."""

    name: str
    gate: Gate
    dataset: str | None = "builtin://copy"
    """None where the environment makes its own tasks. The chat policy has questions of its own otherwise."""
    steps: int = 200
    max_tokens: int = 4
    max_model_len: int = 64
    learning_rate: float = 1e-3
    seeds: tuple[int, ...] = (0,)
    truth: str = "char_accuracy"
    """A built-in reward, such as what an environment returns, or `module:attribute`."""
    truth_weight: float = 1.0
    trained_on: str | None = None
    """A function whose reward is trained on beside `truth`."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    window: int = WINDOW
    max_staleness: int = 0
    """Of asynchronous training; 0 is synchronous. The trainer is slower here than the engine, so that groups
    wait to be trained and become as old as they may."""
    is_corrected: bool = True
    """Whether the age of tokens is corrected for."""
    beside: str | None = None
    """The case that it is compared with."""
    is_chat: bool = False
    """Whether it trains the chat policy."""
    environment: dict[str, Any] | None = None
    """What makes the completions by calls of an API for chats, but for its name."""

    def job(self, seed: int) -> dict[str, Any]:
        """The GRPOJob of one run."""
        kind = "function" if ":" in self.truth else "builtin"
        sampling = {"maxTokens": self.max_tokens, **self.sampling}
        if "tools" in (self.environment or {}):
            # a slow import
            from grpo_learning.chat_tools import BRIEF_TEMPLATE

            sampling["chatTemplate"] = BRIEF_TEMPLATE
        rewards = [{"name": TRUTH, kind: self.truth, "weight": self.truth_weight}]
        if self.trained_on:
            rewards.append({"name": "trained", "function": self.trained_on})
        return {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "learning"},
            "spec": {
                "model": {
                    "source": f"file://{chat_folder() / CHAT_MODEL}" if self.is_chat else "builtin://tiny"
                },
                **self._dataset,
                "rewards": rewards,
                **({"environments": [{"name": "chat", **self.environment}]} if self.environment else {}),
                "algorithm": {
                    "steps": self.steps,
                    "promptsPerStep": 16,
                    "groupSize": 8,
                    "seed": seed,
                    "optimizer": {"learningRate": self.learning_rate},
                    **self.algorithm,
                },
                "sampling": sampling,
                "engine": {"maxModelLen": self.max_model_len, "kvCacheMemory": "64Mi"},
                "checkpoint": {"everySteps": self.steps},
                "report": {"samplesEverySteps": 0},
                **(self._asynchronous if self.max_staleness else {}),
            },
        }

    @property
    def _dataset(self) -> dict[str, Any]:
        if self.dataset is None:
            return {}
        questions = f"file://{chat_folder() / CHAT_DATASET}"
        return {"dataset": {"source": questions if self.is_chat else self.dataset}}

    @property
    def _asynchronous(self) -> dict[str, Any]:
        return {"rollout": {"replicas": 1}, "async": {"maxStaleness": self.max_staleness}}


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

_REVERSE = Case(
    name="reverse",
    gate=Gate(each_at_least=0.97),
    dataset="builtin://reverse",
    steps=400,
    # those of the answer: with room for more a policy unlearns to end before it has learned the letters
    max_tokens=3,
    algorithm={"promptsPerStep": 32},
)


def _asynchronous(beside: Case, max_staleness: int, *, is_gated: bool, is_corrected: bool = True) -> Case:
    """The same job with `async`. Where it `is_gated` it must learn what the synchronous one does."""
    task = beside.name.partition(":")[0]
    return replace(
        beside,
        name=f"{task}: {'' if is_corrected else 'uncorrected '}async {max_staleness}",
        gate=Gate(staleness_at_least=max_staleness / 2, within=0.02 if is_gated else None),
        max_staleness=max_staleness,
        is_corrected=is_corrected,
        beside=beside.name if is_gated else None,
    )


_BY_TOKENS = Case(
    name="calculator: rolloutFunction",
    gate=Gate(mean_at_least=0.9, each_at_least=0.88),
    is_chat=True,
    steps=40,
    # its calls and what they are answered
    max_tokens=80,
    max_model_len=256,
    learning_rate=1e-3,
    seeds=(0, 1, 2),
    truth="grpo_learning.chat_agents:right",
    algorithm={"promptsPerStep": 8},
    sampling={"rolloutFunction": {"function": "grpo_learning.chat_agents:by_tokens"}},
    window=20,
)


def _by_agent(name: str, function: str, **sampling: Any) -> Case:
    """The same task by a client of OpenAI's API."""
    return _by_chats(name, {"function": f"grpo_learning.chat_agents:{function}"}, **sampling)


def _by_tools(name: str, **tools: Any) -> Case:
    """The same task by an environment of tools."""
    return _by_chats(name, {"tools": tools, "limits": {"turns": 2}})


def _by_chats(name: str, environment: dict[str, Any], **sampling: Any) -> Case:
    """The same task by chats, which must learn what the one by tokens does."""
    return replace(
        _BY_TOKENS,
        name=f"calculator: {name}",
        gate=Gate(within=0.03),
        environment=environment,
        sampling={"toolCallParser": "hermes", **sampling},
        beside=_BY_TOKENS.name,
    )


_PROGRAM = replace(
    _BY_TOKENS,
    name="calculator: a program",
    gate=Gate(within=0.03),
    # each of its 2,560 episodes starts Python and imports openai: most of an hour on two cores
    seeds=(0,),
    environment={"command": [sys.executable, str(Path(__file__).with_name("chat_program.py"))]},
    sampling={"toolCallParser": "hermes"},
    beside=_BY_TOKENS.name,
)

_GUESSING = Case(
    name="guessing game",
    # three of seven, .43, are found without listening
    gate=Gate(each_at_least=0.6),
    is_chat=True,
    dataset=None,
    steps=100,
    # a guess is a digit
    max_tokens=1,
    max_model_len=256,
    learning_rate=5e-4,
    seeds=(0, 1, 2),
    truth="environment",
    algorithm={"promptsPerStep": 8, "groupSize": 16},
    environment={"function": "grpo_learning.guessing_game:play"},
    window=20,
)

_COPY = Case(name="copy: dapo", gate=_LEARNED)
CASES = (
    *(
        Case(name=f"copy: {loss}", gate=_LEARNED, learning_rate=rate, algorithm={"lossType": loss})
        for loss, rate in LEARNING_RATES.items()
    ),
    _REVERSE,
    *(
        _asynchronous(beside, max_staleness, is_gated=max_staleness <= 4)
        for beside in (_COPY, _REVERSE)
        for max_staleness in (1, 4, 8)
    ),
    *(
        _asynchronous(beside, max_staleness, is_gated=False, is_corrected=False)
        for beside in (_COPY, _REVERSE)
        for max_staleness in (4, 8)
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
    _BY_TOKENS,
    _by_agent("AsyncOpenAI", "by_openai"),
    _by_agent("AsyncOpenAI and history Template", "by_openai", history="Template"),
    _by_agent("requests of verifiers 0.3.1", "by_verifiers_0_3"),
    _by_agent("requests of verifiers 0.4", "by_verifiers_0_4"),
    _by_tools("class of tools", function="grpo_learning.chat_tools:Calculator"),
    _by_tools("function as a tool", function="grpo_learning.chat_tools:calculator"),
    _by_tools(
        "MCP server",
        mcpServers=[{"name": "calculator", "command": [sys.executable, "-m", "grpo_learning.chat_tools"]}],
    ),
    _PROGRAM,
    _GUESSING,
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
