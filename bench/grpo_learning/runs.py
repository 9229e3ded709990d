"""Trains the job of a case with a real vLLM engine, and reads its rewards."""

from grpo_bench.local_run import trained
from grpo_learning.cases import TRUTH, Case
from grpo_learning.gates import Outcome, outcome_of


def train(case: Case, *, seed: int) -> Outcome:
    """One run of a case. Raises BenchError when the job fails."""
    with trained(case.job(seed), what=f"{case.name}, seed {seed}") as (records, _):
        return outcome_of([record.values[f"rewards/{TRUTH}/mean"] for record in records], window=case.window)
