"""A run on a real engine, as `grpo-runtime run` trains it."""

from grpo_async.cases import Case, Way
from grpo_async.steps import Logged, Run
from grpo_bench.local_run import trained


def train_on_engine(case: Case, way: Way, *, seed: int) -> Run:
    """One run of a case with a real engine. Raises BenchError when the job fails."""
    with trained(case.job(way, seed=seed), what=f"{case.name}, {way.name}") as (records, _):
        return Run.of([Logged(time=record.time, values=record.values) for record in records])
