"""Of several jobs that share nodes one can run, and then the others."""

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from grpo_api.v1alpha1.status import Phase

from .fake_cluster import FakeCluster, spec
from .shared_nodes import SharedNodes


def some_of(count: int, *, num: int) -> list[Any]:
    """Seeds, of which `make test` has the first ones."""
    return [pytest.param(seed, marks=() if seed < num else pytest.mark.matrix) for seed in range(count)]


def jobs(count: int, *, seed: int, num_nodes: int, replicas: int) -> tuple[FakeCluster, ...]:
    """Jobs that start together, each with a uid of its own."""
    made = []
    for index in range(count):
        uid = str(uuid5(NAMESPACE_DNS, f"{seed}/{index}"))
        job_spec = spec(trainer={"numNodes": num_nodes}, rollout={"replicas": replicas})
        made.append(FakeCluster(job_spec, name=f"job-{index}", uid=uid))
        made[-1].has_room = False
    return tuple(made)


@pytest.mark.parametrize("seed", some_of(25, num=8))
def test_of_two_jobs_that_each_got_half_of_the_nodes_one_runs_and_then_the_other(seed: int):
    both = jobs(2, seed=seed, num_nodes=3, replicas=1)
    SharedNodes(4, both).run(hours=12)
    for job in both:
        assert (job.status.phase, job.status.attempt) == (Phase.SUCCEEDED, 1)
        assert (job.status.restarts, job.status.disruptions) == (0, 0)
    assert sum(job.status.given_back for job in both) >= 1
    ends = [job.status.completion_time for job in both]
    assert ends[0] != ends[1]


@pytest.mark.parametrize("seed", some_of(15, num=5))
def test_of_two_jobs_whose_trainers_leave_no_node_for_engines_one_runs_and_then_the_other(seed: int):
    both = jobs(2, seed=seed, num_nodes=2, replicas=1)
    SharedNodes(4, both).run(hours=12)
    assert [job.status.phase for job in both] == [Phase.SUCCEEDED] * 2
    assert [(job.status.attempt, job.status.disruptions) for job in both] == [(1, 0)] * 2


@pytest.mark.parametrize("seed", some_of(5, num=3))
def test_of_three_jobs_that_share_the_nodes_each_runs_in_the_end(seed: int):
    three = jobs(3, seed=seed, num_nodes=4, replicas=1)
    SharedNodes(6, three).run(hours=48)
    assert [job.status.phase for job in three] == [Phase.SUCCEEDED] * 3
