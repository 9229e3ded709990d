"""What is measured: the jobs, and what the synchronous and the asynchronous way have to reach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_async import long_answers
from grpo_async.draws import BoundedPareto
from grpo_async.tool import LATENCY, MAX_TOKENS
from grpo_bench.made_policy import policy_folder

WARM_UP_STEPS = 5
"""So many steps of a run are not counted: at maxStaleness 4 the first groups of five steps begin together."""
SIMULATED_GOAL = 0.9
"""The speed that a run should reach, as a share of that of its simulation."""

# the same number of completions at a time in every way
_ENGINE: Mapping[str, Any] = {"maxModelLen": 64, "kvCacheMemory": "64Mi", "maxNumSeqs": 64}


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of training; `max_staleness` 0 is the synchronous one. `goal` is the least ratio of its speed to
    that of the way that it is compared with."""

    max_staleness: int
    fields: Mapping[str, str] = field(default_factory=dict)
    """Other fields of `async` that are not as by default."""
    goal: float | None = None
    num_times: float = 1.0
    """The run has so many times the steps of the synchronous one, to last about as long: then both have a
    reward after the same time."""

    @property
    def name(self) -> str:
        if not self.max_staleness:
            return "synchronous"
        return ", ".join(f"{name} {value}" for name, value in self.asynchronous.items())

    @property
    def asynchronous(self) -> Mapping[str, Any]:
        """The section `async`, which the synchronous way does not have."""
        return {"maxStaleness": self.max_staleness, **self.fields} if self.max_staleness else {}


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
    samples_every_steps: int = 0
    """The completions of every so many steps are looked at, for weights that changed within them."""
    taught: str | None = None
    """The task whose taught policy is trained; None for `builtin://tiny`."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further sections of the job."""

    def beside(self, way: Way) -> Way:
        """What a way is compared with: where it has fields of its own, the one of the same maxStaleness that
        has none, else the synchronous one."""
        max_staleness = way.max_staleness if way.fields else 0
        return next(one for one in self.ways if one.max_staleness == max_staleness and not one.fields)

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
                "report": {"samplesEverySteps": self.samples_every_steps},
                **self.spec,
                **({"async": dict(way.asynchronous)} if way.asynchronous else {}),
                "algorithm": {
                    "steps": steps,
                    "promptsPerStep": self.prompts_per_step,
                    "groupSize": self.group_size,
                    "seed": seed,
                    **self.algorithm,
                },
            },
        }


MODES: tuple[Mapping[str, str], ...] = (
    {"kvCache": "Keep"},
    {"pauseMode": "Wait"},
    {"pauseMode": "Abort"},
)
"""What may become of completions that are being sampled when weights change, beside the default."""
ORDERS: tuple[Mapping[str, str], ...] = ({"order": "Planned"}, {"stale": "Drop"})
"""What may be trained of what is sampled ahead, beside the default."""


def taught_folder(task: str) -> Path:
    """Where the policy that cases (d) and (e) train is once it is made."""
    return policy_folder(f"taught-{task}", maker=Path(__file__).with_name("taught_policy.py"))


def _ways_of(fields: Sequence[Mapping[str, str]], *, stalenesses: Sequence[int]) -> tuple[Way, ...]:
    """The synchronous way, and with each maxStaleness the defaults and each of these fields."""
    return (
        Way(max_staleness=0),
        *(Way(max_staleness=n, fields=each) for n in stalenesses for each in ({}, *fields)),
    )


def _long(name: str, *, task: str, learning_rate: float) -> Case:
    """A built-in task whose answer is to be written again and again."""
    return Case(
        name=name,
        what=f"the answers of {task} again and again, tokens: {long_answers.LENGTHS}; one real engine",
        steps=40,
        prompts_per_step=8,
        group_size=8,
        ways=_ways_of(MODES, stalenesses=(1, 4)),
        samples_every_steps=5,
        algorithm={"optimizer": {"learningRate": learning_rate}},
        taught=task,
        spec={
            "model": {"source": f"file://{taught_folder(task)}"},
            "dataset": {"source": f"builtin://{task}"},
            "rewards": [{"name": "answer", "function": "grpo_async.long_answers:share_of_answer"}],
            "sampling": {
                "maxTokens": long_answers.MAX_TOKENS,
                "rolloutFunction": {"function": "grpo_async.long_answers:of_its_length"},
            },
            "engine": {**_ENGINE, "maxModelLen": 256},
        },
    )


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
            ways=_ways_of(ORDERS, stalenesses=(2, 4)),
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
        _long("d", task="copy", learning_rate=2e-4),
        # so fast that at maxStaleness 4 the engines' weights are far from the trainer's
        _long("e", task="reverse", learning_rate=5e-4),
    )
}
