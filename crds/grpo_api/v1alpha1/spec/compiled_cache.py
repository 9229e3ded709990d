"""The rule about `engine.compiledCacheClaim` and the other claims of a job."""

from grpo_api.rule import rule
from grpo_api.v1alpha1.spec.checkpoint import CheckpointSpec
from grpo_api.v1alpha1.spec.engine import EngineSpec
from grpo_api.v1alpha1.spec.hub import HubSpec
from grpo_api.v1alpha1.spec.weight_sync import WeightSyncSpec


@rule(
    cel="!has(self.engine.compiledCacheClaim) || !([has(self.checkpoint.claimName) ? "
    "self.checkpoint.claimName : '', has(self.hub.cacheClaim) ? self.hub.cacheClaim : '']"
    ".exists(claim, claim == self.engine.compiledCacheClaim) || has(self.weightSync.disk) && "
    "self.weightSync.disk.to.startsWith('pvc://' + self.engine.compiledCacheClaim + '/'))",
    sentence="engine.compiledCacheClaim is also the claim of the checkpoints, of the Hub's cache or of "
    "weightSync.disk, to which others write, and what is in a compiled cache is run without a check: name a "
    "claim that nothing else uses",
    field=".engine.compiledCacheClaim",
)
def compiled_cache_has_its_own_claim(
    engine: EngineSpec, checkpoint: CheckpointSpec, hub: HubSpec, weight_sync: WeightSyncSpec
) -> bool:
    """Reward functions run where the checkpoints and the weights are written, and other jobs write to the
    cache of the Hub."""
    claim, disk = engine.compiled_cache_claim, weight_sync.disk
    is_of_weights = disk is not None and disk.to.startswith(f"pvc://{claim}/")
    return claim is None or not (claim in (checkpoint.claim_name, hub.cache_claim) or is_of_weights)
