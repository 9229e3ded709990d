"""Real engines whose two workers are not alike: in two pods, and with half of the layers each."""

from collections.abc import Iterator
from typing import Any

import pytest
from engine_of_several import (
    assert_a_failed_transfer_leaves_the_old_weights,
    assert_it_samples_as_one_worker_does,
)

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.progress import TerminationMessage

pytestmark = [pytest.mark.engine, pytest.mark.matrix]


@pytest.fixture(scope="module")
def two_nodes(start_nodes: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A pipeline of one stage in each pod. The last test here ends one of them."""
    folder = tmp_path_factory.mktemp("nodes")
    with start_nodes(folder, name="engine-of-two-nodes", num_nodes=2, pipeline_parallel_size=2) as started:
        yield started


async def test_a_sync_reaches_the_stage_in_the_other_pod(two_nodes: Any, engine: Any, attempt: int) -> None:
    await assert_it_samples_as_one_worker_does(two_nodes[0], one=engine, attempt=attempt, num_workers=2)


async def test_a_failed_transfer_leaves_both_pods_their_old_weights_and_the_next_one_works(
    two_nodes: Any, attempt: int
) -> None:
    await assert_a_failed_transfer_leaves_the_old_weights(two_nodes[0], attempt=attempt, num_workers=2)


def test_a_pod_with_workers_only_ends_when_it_is_asked_to(two_nodes: Any) -> None:
    """The last test with these pods."""
    leader, other = two_nodes
    assert other.stop() == ExitCode.TERMINATED
    message = TerminationMessage.model_validate_json(other.termination_log.read_text())
    assert message.message == "asked to stop"
    assert leader.process.poll() is None


async def test_a_sync_reaches_the_worker_in_the_other_pod(
    start_nodes: Any, engine: Any, attempt: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("workers")
    name = "engine-of-two-workers"
    with start_nodes(folder, name=name, num_nodes=2, tensor_parallel_size=2) as nodes:
        await assert_it_samples_as_one_worker_does(nodes[0], one=engine, attempt=attempt, num_workers=2)


async def test_a_sync_reaches_both_stages_of_a_pipeline_in_one_pod(
    start: Any, engine: Any, attempt: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stages")
    with start(folder, name="engine-of-two-stages", pipeline_parallel_size=2, is_forked=False) as two_stages:
        await assert_it_samples_as_one_worker_does(two_stages, one=engine, attempt=attempt, num_workers=2)
