"""Completions of a step, and their tables."""

from collections.abc import Sequence
from typing import Any

from grpo_api.contract.progress import EngineCounts
from grpo_runtime.report.episodes import Episode, EpisodeTurn, Said
from grpo_runtime.report.samples import Sample, SampleTables
from grpo_runtime.report.sink import StepRecord

ENGINES = EngineCounts(desired=1, known=1, current=1)


def sample(reward: float | None, *, group: int = 0, completion: str = "blue") -> Sample:
    return Sample(
        group=group,
        prompt=f"<s>colour {group}?",
        completion=completion,
        rewards={"match": reward, "length": None},
        reward=reward,
        advantage=0.5,
        num_tokens=3,
        is_terminated=group == 0,
        policy_versions="1.3",
        engine="rollout-0",
    )


def given_up(why: str, *, group: int = 0) -> Sample:
    return Sample.of_given_up(why, group=group, prompt=f"<s>colour {group}?", names=("match", "length"))


def keep(
    tables: SampleTables,
    step: int,
    *samples: Sample,
    evaluated: Sequence[Sample] = (),
    attempt: int = 1,
) -> None:
    tables.write(
        StepRecord(
            attempt=attempt,
            step=step,
            time=0.0,
            values={},
            engines=ENGINES,
            samples=samples,
            evaluated=evaluated,
        )
    )


def episode(says: str = "<call>add</call>", *, state: Any = None, output: str = "") -> Episode:
    """A call of a tool and what the policy makes of its result."""

    def turn(said: Sequence[Said], completion: str, **options: Any) -> EpisodeTurn:
        return EpisodeTurn(
            said=said, completion=completion, **{"sequence": 1, "policy_versions": "1.3"} | options
        )

    first = turn(
        [Said("system", "Add."), Said("user", "1 + 2\nplease")],
        says,
        num_tokens=4,
        seconds=1.5,
        waited_seconds=0.25,
    )
    second = turn(
        [Said("tool", "3")],
        "It is 3.",
        num_tokens=2,
        seconds=0.1234,
        waited_seconds=0.0,
        policy_versions="1.3 1.4",
        segments="0-1 rollout-0, 1-2 rollout-1",
    )
    return Episode(environment="adding", turns=[first, second], returned=0.5, state=state, output=output)
