"""The RunConfig: what all pods of a job read, except secrets."""

import json

from grpo_api.contract.versions import SCHEMA_VERSION, require_schema_version
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.job_spec import Mode
from grpo_api.v1alpha1.spec.run_sections import RunSections


class JobRef(ApiModel):
    """The job. Two jobs of the same name differ in `uid`."""

    namespace: str
    name: str
    uid: str


class Topology(ApiModel):
    """How many processes there are, and in how many pods."""

    num_nodes: int
    """Trainer pods."""
    processes_per_node: int
    """Training ranks in each of them."""
    rollout_replicas: int
    """Rollout pods at the start, 0 in mode Colocated. Each attempt is told by `GRPO_ROLLOUT_REPLICAS` how
    many there should be when it begins."""

    @property
    def world_size(self) -> int:
        """Training ranks in all."""
        return self.num_nodes * self.processes_per_node


class RunConfig(RunSections):
    """Made once, when the job starts, and the same for every pod and attempt.

    The sections are those of the GRPOJob with every default written out, so that a runtime of another release
    does not put in its own defaults. The runtime fills in only fields that an
    older operator does not know.
    """

    schema_version: int = SCHEMA_VERSION
    job: JobRef
    mode: Mode
    """Disaggregated or Colocated, never Auto."""
    topology: Topology
    rollout_lost_timeout_seconds: int
    """How long the trainer waits while there is no rollout engine at all."""

    @property
    def weight_sync_backend(self) -> str:
        """Name of the backend that transfers weights. The trainer and its engines both read it here."""
        if self.mode is not Mode.COLOCATED:
            return "gloo"
        return "shared_memory" if self.engine.has_own_process else "in_process"

    @property
    def strategy(self) -> str:
        """Name of the strategy that spreads the policy over the training ranks."""
        return "DDP"


def parse_run_config(text: str) -> RunConfig:
    """Read a RunConfig file.

    Raises SchemaSkewError when its schema version is another one. That is checked first, so that the message
    is about the release and not about a field. Raises pydantic's ValidationError when the file is invalid.
    """
    require_schema_version(json.loads(text).get("schemaVersion", 0), what="RunConfig")
    return RunConfig.model_validate_json(text)
