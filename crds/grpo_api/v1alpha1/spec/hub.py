"""`hub`: access to the Hugging Face Hub."""

from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.fields import ClaimName


class HubSpec(ApiModel):
    """How `hf://` models and datasets are downloaded from the Hugging Face Hub."""

    token_secret: ClaimName | None = None
    """Secret whose key `token` is an access token, for private or gated repositories. The pods mount it as a
    file."""
    cache_claim: ClaimName | None = None
    """PersistentVolumeClaim with the Hub's cache, mounted by all pods: files are downloaded once and kept for
    the next job. Without it every pod downloads them itself."""
    offline: bool = False
    """Use only files that are in the cache, without asking the Hub."""
