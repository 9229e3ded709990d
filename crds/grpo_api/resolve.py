"""From a GRPOJob to the RunConfig of its pods. Pure: local mode needs it without an operator."""

from grpo_api.contract.run_config import JobRef, RunConfig, Topology
from grpo_api.v1alpha1.job import GRPOJob


def resolve(job: GRPOJob) -> RunConfig:
    """Write out every default and every derived number of a valid job."""
    spec = job.spec
    return RunConfig(
        job=JobRef(namespace=job.metadata.namespace, name=job.metadata.name, uid=job.metadata.uid),
        topology=Topology(
            num_nodes=spec.trainer.num_nodes,
            processes_per_node=spec.trainer.num_processes,
            rollout_replicas=spec.rollout.replicas,
        ),
        model=spec.model,
        dataset=spec.dataset,
        rewards=spec.rewards,
        algorithm=spec.algorithm,
        sampling=spec.sampling,
        engine=spec.engine,
        weight_sync=spec.weight_sync,
        checkpoint=spec.checkpoint,
    )
