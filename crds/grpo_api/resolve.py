"""From a GRPOJob to the RunConfig of its pods. Pure: local mode needs it without an operator."""

from grpo_api.contract.run_config import JobRef, RunConfig, Topology
from grpo_api.source import Volume, VolumeKind, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_api.v1alpha1.spec import RolloutSpec


def resolve(job: GRPOJob) -> RunConfig:
    """Write out every default and every derived number of a valid job."""
    spec = job.spec
    rollout = spec.rollout or RolloutSpec()
    return RunConfig(
        job=JobRef(namespace=job.metadata.namespace, name=job.metadata.name, uid=job.metadata.uid),
        mode=spec.chosen_mode,
        topology=Topology(
            num_nodes=spec.trainer.num_nodes,
            processes_per_node=spec.trainer.num_processes,
            rollout_replicas=rollout.replicas if spec.rollout else 0,
        ),
        model=spec.model,
        dataset=spec.dataset,
        rewards=spec.rewards,
        algorithm=spec.algorithm,
        sampling=spec.sampling,
        engine=spec.engine,
        weight_sync=spec.weight_sync,
        checkpoint=spec.checkpoint,
        hub=spec.hub,
        rollout_lost_timeout_seconds=rollout.lost_timeout_seconds,
    )


def volumes_of(run: RunConfig) -> tuple[Volume, ...]:
    """What every pod of a run mounts to read its model, its data and its rewards, in a fixed order."""
    sources = (parse_source(run.model.source), parse_source(run.dataset.source))
    found = {source.volume for source in sources if source.volume}
    found |= {
        Volume(VolumeKind.CONFIG_MAP, reward.config_map.name) for reward in run.rewards if reward.config_map
    }
    return tuple(sorted(found))
