"""`grpo-runtime` for runs without importance correction, which no job with `async` can ask for."""

import sys
from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec.loss import ImportanceCorrectionMode
from grpo_runtime.cli import main
from grpo_runtime.local import workspace


def resolve_uncorrected(job: GRPOJob, **named: Any) -> RunConfig:
    """The RunConfig of a job, but for its correction."""
    run_config = resolve(job, **named)
    algorithm = run_config.algorithm
    correction = algorithm.importance_correction.model_copy(update={"mode": ImportanceCorrectionMode.NONE})
    algorithm = algorithm.model_copy(update={"importance_correction": correction})
    return run_config.model_copy(update={"algorithm": algorithm})


if __name__ == "__main__":
    # where the command writes the RunConfig, which all its processes read
    setattr(workspace, "resolve", resolve_uncorrected)  # noqa: B010 - mypy sees no such attribute
    sys.exit(main())
