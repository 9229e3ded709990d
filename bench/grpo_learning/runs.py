"""Trains the job of a case with a real vLLM engine, and reads its rewards."""

from statistics import fmean

from grpo_bench.local_run import trained
from grpo_learning.cases import TRUTH, Case, chat_folder
from grpo_learning.chat_policy import made_chat_policy
from grpo_learning.gates import Outcome, outcome_of


def train(case: Case, *, seed: int) -> Outcome:
    """One run of a case. Raises BenchError when the job fails."""
    if case.is_chat:
        made_chat_policy(chat_folder())
    program = "grpo_runtime.cli" if case.is_corrected else "grpo_learning.uncorrected"
    with trained(case.job(seed), what=f"{case.name}, seed {seed}", program=program) as (records, _):
        rewards = [record.values[f"rewards/{TRUTH}/mean"] for record in records]
        staleness = [record.values.get("async/staleness/mean", 0.0) for record in records]
        return outcome_of(rewards, window=case.window, staleness=fmean(staleness))
