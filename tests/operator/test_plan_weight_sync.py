"""The weight-sync backend of a job: chosen and written down when it starts, and kept."""

import json
from typing import Any

import pytest

from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import WeightSyncStatus
from grpo_operator.children.config import SPEC_KEY
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_operator.cluster.kinds import CONFIG_MAPS

from .fake_cluster import FakeCluster, spec

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def on_gpus(**changes: Any) -> GRPOJobSpec:
    return spec(trainer=GPU, rollout={"replicas": 2} | GPU, **changes)


def backend_in_config_map(cluster: FakeCluster) -> tuple[str, str]:
    """What the RunConfig and the stored spec say that the next step would write."""
    (child,) = (child for child in cluster.plan().create if child.kind == CONFIG_MAPS)
    data = child.body["data"]
    read = (json.loads(data[key])["weightSync"]["backend"] for key in (RUN_CONFIG_KEY, SPEC_KEY))
    in_run, in_spec = read
    return in_run, in_spec


@pytest.mark.parametrize(
    ("job_spec", "backend", "reason"),
    [
        (spec(), "Gloo", "trainer and engines run on CPU"),
        (spec(trainer=GPU), "Gloo", "the engines run on CPU"),
        (on_gpus(), "NCCL", "trainer and engines have GPUs"),
        (on_gpus(weightSync={"backend": "Gloo"}), "Gloo", "spec.weightSync.backend is Gloo"),
        (
            on_gpus(weightSync={"backend": "VllmNative"}),
            "VllmNative",
            "spec.weightSync.backend is VllmNative",
        ),
    ],
)
def test_the_backend_and_its_reason_are_written_down_at_the_start(
    job_spec: GRPOJobSpec, backend: str, reason: str
) -> None:
    cluster = FakeCluster(job_spec)
    cluster.step()
    assert cluster.status.weight_sync == WeightSyncStatus(backend=backend, reason=reason)


def test_what_was_chosen_stays_when_the_spec_no_longer_says_so() -> None:
    cluster = FakeCluster(spec()).start()
    before = cluster.status.weight_sync
    cluster.stored_spec = spec(mode="Disaggregated")
    cluster.spec, cluster.generation = on_gpus(), 2  # past the API server, which refuses it
    cluster.settle()
    assert cluster.status.weight_sync == before


def test_a_config_map_that_is_made_again_has_the_backend_that_the_engines_were_started_with() -> None:
    cluster = FakeCluster(on_gpus()).start()
    cluster.config_names.clear()
    assert backend_in_config_map(cluster) == ("NCCL", "NCCL")


def test_a_job_whose_backend_only_another_release_knows_is_left_alone() -> None:
    cluster = FakeCluster(on_gpus()).start()
    of_the_future = WeightSyncStatus(backend="Pigeon", reason="it flies")
    cluster.status = cluster.status.model_copy(update={"weight_sync": of_the_future})
    cluster.config_names.clear()
    plan = cluster.plan()
    assert (plan.create, plan.delete) == ((), ())
    assert plan.status.weight_sync == of_the_future
