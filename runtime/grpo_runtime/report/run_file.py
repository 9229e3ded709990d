"""run.json: the RunConfig of a run beside its metrics, for people and for the page of the run."""

import json
from pathlib import Path

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_runtime.errors import UserError
from grpo_runtime.storage.files import write_atomically

RUN_CONFIG_FILE = "run.json"


def keep_run_file(output_dir: Path, run_config: RunConfig) -> None:
    """Write the RunConfig, unless it is there from an earlier attempt or from `grpo-runtime run`. It names
    Secrets and holds none."""
    path = output_dir / RUN_CONFIG_FILE
    if not path.exists() or json.loads(path.read_text())["job"] != run_config.job.to_object():
        write_atomically(path, json.dumps(run_config.to_object(), indent=1) + "\n")


def read_run_file(output_dir: Path) -> RunConfig:
    """The RunConfig of the run in `output_dir`.

    Raises UserError when there is none, and SchemaSkewError when another release wrote it.
    """
    path = output_dir / RUN_CONFIG_FILE
    if not path.exists():
        raise UserError(f"{path} is missing: it is written when a job starts")
    return parse_run_config(path.read_text())
