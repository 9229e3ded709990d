"""RunConfigs that differ in their dataset."""

from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job


def dataset_run(
    source: str,
    *,
    builtin: str = "exact_match",
    seed: int = 0,
    hub: dict[str, Any] | None = None,
    **dataset: Any,
) -> RunConfig:
    """The RunConfig of a job on the dataset `source`; keyword arguments are further fields of that
    section."""
    reward: dict[str, Any] = {"name": "reward", "builtin": builtin}
    return resolve(
        parse_job(
            {
                "apiVersion": "grpo.dev/v1alpha1",
                "kind": "GRPOJob",
                "metadata": {"name": "data", "uid": "uid-1"},
                "spec": {
                    "model": {"source": "builtin://tiny"},
                    "dataset": {"source": source, **dataset},
                    "rewards": [reward],
                    "algorithm": {"steps": 5, "seed": seed},
                    "hub": hub or {},
                },
            }
        )
    )
