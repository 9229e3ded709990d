"""A reward that sleeps: a job lasts as long as its tests, and leaves the machine to what they wait for."""

from string import Template

from grpo_scenarios.faults import config_map
from grpo_scenarios.namespace import Namespace, Object

_PACE, _HURRY = "pace", "hurry"
_HOLD_SECONDS = 50
"""Less than the deadline of a reward function."""
_CODE = """
import pathlib, time

def reward(completions, trainer_state, **_):
    hurry = pathlib.Path("/output/$file")
    if not hurry.exists():
        time.sleep($seconds)
    end = time.monotonic() + $hold_seconds
    while trainer_state.global_step >= $hold_at and not hurry.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return [0.0] * len(completions)
"""


def slow_down(job: Object, *, seconds: float, is_held: bool = False) -> Object:
    """Add a reward of weight 0 to a job, which sleeps so long in each step. Returns its ConfigMap. A job that
    `is_held` makes its last step only after `hurry`, or minutes later."""
    # rewards are called for one prompt at a time
    for_each_prompt = seconds / job["spec"]["algorithm"]["promptsPerStep"]
    key = f"{_PACE}.py"
    code = {"name": _PACE, "key": key, "function": "reward"}
    job["spec"]["rewards"].append({"name": _PACE, "configMap": code, "weight": 0})
    hold_at = job["spec"]["algorithm"]["steps"] - (1 if is_held else 0)
    text = Template(_CODE).substitute(
        file=_HURRY, seconds=for_each_prompt, hold_seconds=_HOLD_SECONDS, hold_at=hold_at
    )
    return config_map(_PACE, {key: text})


def hurry(namespace: Namespace, *, claim: str) -> None:
    """Let the rest of the steps of the one job on a claim follow one another without a pause."""
    (namespace.output_folder(claim) / _HURRY).touch()
