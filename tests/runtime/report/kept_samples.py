"""Completions of a step, and their tables."""

from grpo_api.contract.progress import EngineCounts
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


def keep(tables: SampleTables, step: int, *samples: Sample, attempt: int = 1) -> None:
    tables.write(
        StepRecord(attempt=attempt, step=step, time=0.0, values={}, engines=ENGINES, samples=samples)
    )
