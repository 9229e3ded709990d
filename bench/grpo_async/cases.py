"""What is measured: the jobs, and what the synchronous and the asynchronous way have to reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_async.draws import BoundedPareto
from grpo_async.tool import LATENCY, MAX_TOKENS

WARM_UP_STEPS = 5
"""So many steps of a run are not counted: at maxStaleness 4 the first groups of five steps begin together."""
SIMULATED_GOAL = 0.9
"""The speed that a run should reach, as a share of that of its simulation."""

# the same number of completions at a time in every way
_ENGINE: Mapping[str, Any] = {"maxModelLen": 64, "kvCacheMemory": "64Mi", "maxNumSeqs": 64}


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of training; `max_staleness` 0 is the synchronous one. `goal` is the least ratio of its speed to
    that of the synchronous one."""

    max_staleness: int
    goal: float | None = None
    num_times: float = 1.0
    """The run has so many times the steps of the synchronous one, to last about as long: then both have a
    reward after the same time."""

    @property
    def name(self) -> str:
        return f"maxStaleness {self.max_staleness}" if self.max_staleness else "synchronous"


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """Engines of stated speed, and a trainer."""

    num_engines: int
    samples_per_engine: int
    """Most completions that an engine samples at a time."""
    seconds_per_token: float
    """Of a completion, however many others the engine samples beside it."""
    lengths: BoundedPareto
    """Tokens of completions."""
    train_seconds: float
    sync_seconds: float
    """From the beginning of a weight sync to the moment in which engines sample with the new weights. They
    sample on meanwhile."""

    @property
    def num_places(self) -> int:
        """Completions that all engines sample at a time."""
        return self.num_engines * self.samples_per_engine

    def num_tokens(self, seed: int) -> int:
        """The length of the completion with this seed."""
        return round(self.lengths.of(seed))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that is trained in each of its ways."""

    name: str
    what: str
    """In a sentence."""
    steps: int
    """Of the synchronous run."""
    prompts_per_step: int
    group_size: int
    ways: tuple[Way, ...]
    latency: BoundedPareto | None = None
    """Seconds of the tool, where there is one."""
    scripted: Scripted | None = None
    """None for real engines."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further sections of the job."""

    def steps_of(self, way: Way) -> int:
        """Steps of a run. Before its last ones fewer groups are begun than in those that are counted."""
        return round(self.steps * way.num_times) + way.max_staleness

    def job(self, way: Way, *, seed: int) -> dict[str, Any]:
        """The GRPOJob of one run: the ways differ in `async` and in their number of steps alone."""
        steps = self.steps_of(way)
        return {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "asynchronous", "namespace": "bench", "uid": "bench"},
            "spec": {
                "model": {"source": "builtin://tiny"},
                "dataset": {"source": "builtin://copy"},
                "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
                "sampling": {"maxTokens": 4},
                "engine": _ENGINE,
                "rollout": {"replicas": 1},
                "checkpoint": {"everySteps": steps},
                "report": {"samplesEverySteps": 0},
                **self.spec,
                **({"async": {"maxStaleness": way.max_staleness}} if way.max_staleness else {}),
                "algorithm": {
                    "steps": steps,
                    "promptsPerStep": self.prompts_per_step,
                    "groupSize": self.group_size,
                    "seed": seed,
                    **self.algorithm,
                },
            },
        }


SCRIPTED = Scripted(
    num_engines=2,
    samples_per_engine=16,
    seconds_per_token=1e-3,
    lengths=BoundedPareto(lowest=16, highest=1024, shape=1.0),
    train_seconds=0.15,
    sync_seconds=0.02,
)
CASES = {
    case.name: case
    for case in (
        Case(
            name="a",
            what=f"a tool between two turns, seconds: {LATENCY}; one real engine",
            steps=16,
            prompts_per_step=8,
            group_size=4,
            latency=LATENCY,
            ways=(
                Way(max_staleness=0),
                Way(max_staleness=2, goal=1.8, num_times=1.8),
                Way(max_staleness=4, goal=2.5, num_times=2.5),
            ),
            algorithm={"optimizer": {"learningRate": 3e-3}},
            spec={
                "rewards": [{"name": "letters", "function": "grpo_async.tool:share_of_letters"}],
                "sampling": {
                    "maxTokens": MAX_TOKENS,
                    "rolloutFunction": {"function": "grpo_async.tool:with_tool"},
                },
            },
        ),
        Case(
            name="b",
            what=f"uneven completions, tokens: {SCRIPTED.lengths}; {SCRIPTED.num_engines} scripted engines",
            steps=40,
            prompts_per_step=8,
            group_size=8,
            ways=(Way(max_staleness=0), Way(max_staleness=2), Way(max_staleness=4)),
            scripted=SCRIPTED,
            spec={
                "rollout": {"replicas": SCRIPTED.num_engines},
                "sampling": {"maxTokens": round(SCRIPTED.lengths.highest)},
                "engine": {**_ENGINE, "maxNumSeqs": SCRIPTED.samples_per_engine, "maxModelLen": 2048},
                "weightSync": {"verify": False},
            },
        ),
        Case(
            name="c",
            what="the copy job, whose completions have at most four tokens; one real engine",
            steps=80,
            prompts_per_step=16,
            group_size=8,
            ways=(Way(max_staleness=0), Way(max_staleness=2), Way(max_staleness=4)),
            algorithm={"optimizer": {"learningRate": 1e-3}},
        ),
    )
}
