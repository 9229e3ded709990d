"""A pod of another namespace floods the port on which a trainer reports.

The local cluster enforces no NetworkPolicy, so the flood arrives.
"""

import pytest

from grpo_api.contract.endpoints import TRAINER_PORT
from grpo_scenarios.faults import config_map
from grpo_scenarios.flood import flooded
from grpo_scenarios.namespace import Namespace, Object, copy_job

pytestmark = pytest.mark.cluster

JOB = "copy"
PACE = "pace"
SLOW = """
import time

def reward(completions, **_):
    time.sleep(0.3)
    return [0.0] * len(completions)
"""
"""A slow reward: the job outlives the flood."""
FLOOD_SECONDS = 75
"""Longer than the 65 s after which the liveness probe of 0.1.0, which asked this port, ended the pod."""


def test_a_flood_of_a_trainers_port_costs_no_restart_and_its_job_goes_on(namespace: Namespace) -> None:
    small = copy_job(
        JOB,
        algorithm={"steps": 2000, "promptsPerStep": 2},
        trainer={"processesPerNode": 1},
        rollout={"replicas": 1},
    )
    code = {"name": PACE, "key": "pace.py", "function": "reward"}
    small["spec"]["rewards"].append({"name": PACE, "configMap": code, "weight": 0})
    namespace.apply(config_map(PACE, {"pace.py": SLOW}), small)
    namespace.wait_for_step(JOB, 3)
    before = trainer(namespace)

    address = before["status"]["podIP"]
    with flooded(namespace, address, TRAINER_PORT, seconds=FLOOD_SECONDS) as flood:
        first = namespace.status(JOB)["step"]
        namespace.wait_for_step(JOB, first + 5)
        assert flood.is_running, "it ended before the status moved"
        num_opened = flood.wait_for_end(timeout_seconds=2 * FLOOD_SECONDS)

    assert min(num_opened.values()) > 500, num_opened
    after = namespace.wait_for_step(JOB, namespace.status(JOB)["step"] + 3)
    assert (after["attempt"], after["restarts"], after["disruptions"]) == (1, 0, 0)
    assert trainer(namespace)["metadata"]["uid"] == before["metadata"]["uid"]


def trainer(namespace: Namespace) -> Object:
    (pod,) = namespace.pods_of(JOB, "trainer")
    return pod
