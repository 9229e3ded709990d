"""From a GRPOJob to the RunConfig of its pods. It is pure, and local mode uses it without an operator."""

from typing import TypeVar

from grpo_api.contract.run_config import JobRef, RunConfig, Topology
from grpo_api.contract.weight_sync_choice import backend_of, name_in_run, with_backend
from grpo_api.source import Volume, VolumeKind, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import RolloutSpec, TrainerSpec, TrainerStrategy

Config = TypeVar("Config", bound=RunConfig)


def resolve(job: GRPOJob, *, is_one_machine: bool = False) -> RunConfig:
    """The RunConfig of a valid job, with every default and every derived number written out. `is_one_machine`
    says that all its processes will be on this machine."""
    return resolve_into(RunConfig, job, is_one_machine=is_one_machine)


def resolve_into(config: type[Config], job: GRPOJob, *, is_one_machine: bool = False) -> Config:
    """What `resolve` returns, as another model: every field that both it and the spec have is taken over, so
    a section that both declare needs nothing here."""
    backend = backend_of(job.spec, is_one_machine=is_one_machine).backend
    spec = with_backend(job.spec, name_in_run(backend, mode=job.spec.chosen_mode))
    rollout = spec.rollout or RolloutSpec()
    shared = {name: getattr(spec, name) for name in config.model_fields if name in type(spec).model_fields}
    derived = {
        "job": JobRef(namespace=job.metadata.namespace, name=job.metadata.name, uid=job.metadata.uid),
        "mode": spec.chosen_mode,
        "topology": Topology(
            num_nodes=spec.trainer.num_nodes,
            processes_per_node=spec.trainer.num_processes,
            rollout_replicas=rollout.replicas if spec.rollout else 0,
        ),
        "rollout_lost_timeout_seconds": rollout.lost_timeout_seconds,
        "strategy": strategy_in_run(spec.trainer),
    }
    return config(**shared | derived)


def strategy_in_run(trainer: TrainerSpec) -> TrainerStrategy | None:
    """What is written down for a run: None for DDP, which goes without saying.

    This is where Auto will choose, which is meant where the spec names none: by the memory that the policy
    needs on each GPU, once that is planned. Until then it is DDP.
    """
    return None if trainer.strategy is TrainerStrategy.DDP else trainer.strategy


def volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """The volumes that every pod mounts for its model, its data and its rewards, in a fixed order."""
    sources = (parse_source(run.model.source), parse_source(run.dataset.source))
    found = {source.volume for source in sources if source.volume}
    found |= {
        Volume(VolumeKind.CONFIG_MAP, reward.config_map.name) for reward in run.rewards if reward.config_map
    }
    return tuple(sorted(found))
