"""How long a trainer pod may take to stop. The operator sets this limit, and the supervisor observes it."""

import math
import re

from grpo_api.v1alpha1.spec import GRPOJobSpec

TRAINER_GRACE_SECONDS = 60
"""terminationGracePeriodSeconds of a trainer pod, unless saves are known to need longer: time for a
checkpoint after SIGTERM and for the termination message."""
SAVES_IN_GRACE = 3
"""How many saves it must have time for: the one that is in flight, the one after it, and one in reserve."""
MAX_TRAINER_GRACE_SECONDS = 3600
"""The longest, however long its saves take: a pod that is deleted ends within this time."""
SUPERVISOR_MARGIN_SECONDS = 10
"""The part of it that the supervisor has for itself after the ranks have ended."""
SAVES_IN_ESTIMATE = 2
"""How many saves it has time for before one has been measured: the one that is in flight and the one after
it. The reserve is in the estimate, which assumes a slow volume."""
WRITE_BYTES_PER_SECOND = 200e6
"""Speed at which a node is assumed to write to its claim while it hashes: less than most network volumes
take. A local disk is five times as fast."""
CHECKPOINT_BYTES_PER_PARAMETER = 12
"""A float32 weight and the two moments of AdamW."""
REFERENCE_BYTES_PER_PARAMETER = 4
"""The weight of a reference policy that follows (`algorithm.kl.refSync`)."""
_SIZE = re.compile(
    r"(?<![a-z0-9.])(?:(?P<experts>[0-9]{1,4})x)?(?P<number>[0-9]{1,4}(?:\.[0-9]{1,3})?)(?P<unit>[bm])(?![a-z0-9])",
    re.IGNORECASE,
)
_UNITS = {"b": 10**9, "m": 10**6}


def trainer_grace_seconds(
    checkpoint_seconds: float | None, *, estimated_seconds: float | None = None, asked: int | None = None
) -> int:
    """terminationGracePeriodSeconds of a trainer pod.

    What a user `asked` for wins. Else it follows from how long the newest save took (`checkpoint_seconds`),
    and while none is known from how long one is estimated to take.
    """
    if asked is not None:
        return asked
    if checkpoint_seconds is not None:
        needed = SAVES_IN_GRACE * checkpoint_seconds
    else:
        needed = SAVES_IN_ESTIMATE * (estimated_seconds or 0)
    return min(MAX_TRAINER_GRACE_SECONDS, max(TRAINER_GRACE_SECONDS, math.ceil(needed)))


def ranks_grace_seconds(grace_seconds: int) -> int:
    """The part of a pod's grace period in which its ranks save and stop."""
    return grace_seconds - SUPERVISOR_MARGIN_SECONDS


RANKS_GRACE_SECONDS = ranks_grace_seconds(TRAINER_GRACE_SECONDS)
"""The part of TRAINER_GRACE_SECONDS in which the ranks save and stop; then they are killed."""


def estimated_save_seconds(spec: GRPOJobSpec) -> float | None:
    """How long a save may take, as far as the name of the model shows; None where there is no claim to save
    to, where the name has no size, and with an adapter, which is small.

    Trainer pod 0 writes everything, or with `checkpoint.shared` every trainer pod its share.
    """
    parameters = num_parameters_named(spec.model.source)
    if spec.checkpoint.claim_name is None or spec.model.lora is not None or parameters is None:
        return None
    num_writers = spec.trainer.num_nodes if spec.checkpoint.shared else 1
    num_bytes = CHECKPOINT_BYTES_PER_PARAMETER
    if spec.algorithm.kl is not None and spec.algorithm.kl.ref_sync is not None:
        num_bytes += REFERENCE_BYTES_PER_PARAMETER
    return parameters * num_bytes / (WRITE_BYTES_PER_SECOND * num_writers)


def num_parameters_named(source: str) -> int | None:
    """The parameters of the model at a source, by the convention of the Hugging Face Hub: 0.6B, 135M, 8x7B.
    None where no part of its name is a size. No file of the model is read.

    The largest size counts: `30B-A3B` has 30 billion, of which 3 take part in each token, and a `1M` beside
    a `7B` is the length of a context. The owner of a repository and the name of a claim do not count.
    """
    scheme, _, path = source.partition("://")
    name = path if scheme == "file" else path.partition("/")[2]
    sizes = [
        int(match["experts"] or 1) * float(match["number"]) * _UNITS[match["unit"].lower()]
        for match in _SIZE.finditer(name)
    ]
    return round(max(sizes)) if sizes else None
