"""A reward that sleeps: a job lasts as long as its tests, and leaves the machine to what they wait for."""

from grpo_scenarios.faults import config_map
from grpo_scenarios.namespace import Namespace, Object

_PACE, _HURRY = "pace", "hurry"
_CODE = """
import pathlib, time

def reward(completions, **_):
    if not pathlib.Path("/output/{file}").exists():
        time.sleep({seconds})
    return [0.0] * len(completions)
"""


def slow_down(job: Object, *, seconds: float) -> Object:
    """Add a reward of weight 0 to a job, which sleeps so long in each step. Returns its ConfigMap."""
    # rewards are called for one prompt at a time
    for_each_prompt = seconds / job["spec"]["algorithm"]["promptsPerStep"]
    key = f"{_PACE}.py"
    code = {"name": _PACE, "key": key, "function": "reward"}
    job["spec"]["rewards"].append({"name": _PACE, "configMap": code, "weight": 0})
    return config_map(_PACE, {key: _CODE.format(file=_HURRY, seconds=for_each_prompt)})


def hurry(namespace: Namespace, *, claim: str) -> None:
    """Let the rest of the steps of the one job on a claim follow one another without a pause."""
    (namespace.output_folder(claim) / _HURRY).touch()
