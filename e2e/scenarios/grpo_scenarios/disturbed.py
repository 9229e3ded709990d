"""A job that is disturbed in the middle of its steps, and what must be equal to one that nobody disturbs."""

from grpo_scenarios.namespace import Namespace, Object, copy_job

NUM_STEPS = 8
_ALONE = {"maxNumSeqs": 1}
"""Each engine samples one completion at a time: a logprob's last bits depend on what is computed with it."""
_COUNTS = ("restarts", "disruptions", "failuresSinceProgress", "disruptionsSinceProgress")


def long_job(name: str) -> Object:
    """A job on the claim of its name that saves when it is asked to stop and at its end only."""
    return copy_job(
        name,
        claim=name,
        algorithm={"steps": NUM_STEPS, "promptsPerStep": 4, "groupSize": 4},
        engine=_ALONE,
        checkpoint={"everySteps": 1000},
    )


def attempt_and_counts(status: Object) -> tuple[int, dict[str, int]]:
    """The attempt, and how often what was counted; empty where nothing was."""
    return status["attempt"], {name: status[name] for name in _COUNTS if status.get(name)}


def digests(namespace: Namespace, claim: str) -> dict[int, float]:
    """What identifies the weights after each step."""
    return {each.step: each.values["journal/weights_checksum"] for each in namespace.metrics(claim)}


def trained_model(namespace: Namespace, claim: str) -> bytes:
    """The exported weights of the one job on a claim."""
    (path,) = (namespace.output_folder(claim) / "model").glob("*.safetensors")
    return path.read_bytes()
