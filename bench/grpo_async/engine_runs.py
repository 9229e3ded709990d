"""A run on a real engine, as `grpo-runtime run` trains it."""

from pathlib import Path

from grpo_async.cases import Case, Way
from grpo_async.steps import Logged, Run
from grpo_async.taught_policy import made_taught_policy
from grpo_bench.local_run import trained
from grpo_runtime.report.samples import read_samples, steps_with_samples


def train_on_engine(case: Case, way: Way, *, seed: int) -> Run:
    """One run of a case with a real engine. Raises BenchError when the job fails."""
    if case.taught is not None:
        made_taught_policy(case.taught)
    with trained(case.job(way, seed=seed), what=f"{case.name}, {way.name}") as (records, folder):
        steps = [Logged(time=record.time, values=record.values) for record in records]
        return Run.of(steps, share_across=share_across(folder))


def share_across(folder: Path) -> float | None:
    """As in `Run`, of the steps whose completions were kept; None where none were."""
    samples = [sample for step in steps_with_samples(folder) for sample in read_samples(folder, step=step)]
    if not samples:
        return None
    across = sum(sample.num_tokens for sample in samples if len(set(sample.policy_versions.split())) > 1)
    return across / sum(sample.num_tokens for sample in samples)
