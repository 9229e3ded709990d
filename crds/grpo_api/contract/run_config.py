"""The RunConfig: everything about a run that is not a secret and not about one pod."""

import json

from grpo_api.contract.versions import SCHEMA_VERSION, require_schema_version
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec import (
    AlgorithmSpec,
    CheckpointSpec,
    DatasetSpec,
    EngineSpec,
    HubSpec,
    Mode,
    ModelSpec,
    RewardSpec,
    SamplingSpec,
    WeightSyncSpec,
)


class JobRef(ApiModel):
    """Which job this run belongs to. `uid` tells two jobs of one name apart."""

    namespace: str
    name: str
    uid: str


class Topology(ApiModel):
    """How many processes there are and where they belong."""

    num_nodes: int
    """Trainer pods."""
    processes_per_node: int
    """Training ranks in each of them."""
    rollout_replicas: int
    """Rollout pods planned at the start, 0 in mode Colocated; the fleet may grow and shrink later."""

    @property
    def world_size(self) -> int:
        """Training ranks in all."""
        return self.num_nodes * self.processes_per_node


class RunConfig(ApiModel):
    """Resolved once, frozen when the job starts, the same for every pod and attempt.

    The sections are those of the GRPOJob with every default written out, so an old runtime never fills in
    a default of its own.
    """

    schema_version: int = SCHEMA_VERSION
    job: JobRef
    mode: Mode
    """Never Auto."""
    topology: Topology
    model: ModelSpec
    dataset: DatasetSpec
    rewards: tuple[RewardSpec, ...]
    algorithm: AlgorithmSpec
    sampling: SamplingSpec
    engine: EngineSpec
    weight_sync: WeightSyncSpec
    checkpoint: CheckpointSpec
    hub: HubSpec
    rollout_lost_timeout_seconds: int
    """How long the trainer waits while there is no rollout engine at all."""


def parse_run_config(text: str) -> RunConfig:
    """Read a RunConfig file.

    Raises SchemaSkewError when it was written by another release (checked before anything else, so the
    sentence is about the release and not about a field), and pydantic's ValidationError when it is broken.
    """
    require_schema_version(json.loads(text).get("schemaVersion", 0), what="RunConfig")
    return RunConfig.model_validate_json(text)
