"""What a release stores is read: `write_fixtures` wrote it, small."""

import json

from grpo_api.contract.run_config import parse_run_config
from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.observe.from_cache import job_view

from .write_fixtures import FIXTURES


def test_a_stored_job_is_read_with_its_status_and_nothing_is_added_to_its_spec() -> None:
    item = json.loads((FIXTURES / "grpojob.json").read_text())
    item["metadata"]["resourceVersion"] = "4"
    view = job_view(item)
    assert view.problem == "" and view.spec is not None
    # else its revision would be another
    assert view.spec.to_object() == item["spec"]
    assert (view.spec.algorithm.minibatches, view.spec.algorithm.max_non_finite_steps) == (2, 3)
    status = view.status
    assert (status.phase, status.attempt, status.step, status.checkpoint_step) == (Phase.RUNNING, 2, 17, 10)
    assert (status.restarts, status.failures_since_progress) == (1, 1)
    assert {found.type for found in status.conditions} == {
        ConditionType.READY,
        ConditionType.RUNNING,
        ConditionType.ROLLOUT_READY,
    }
    assert status.last_failure is not None and status.last_failure.reason == "OOMKilled"


def test_a_stored_run_config_is_read() -> None:
    text = (FIXTURES / "run_config.json").read_text()
    run = parse_run_config(text)
    assert run.to_object() == json.loads(text)
    assert (run.topology.rollout_replicas, run.weight_sync_backend, run.strategy) == (2, "gloo", "DDP")
    assert run.model.lora is not None and run.model.lora.alpha == 16
    assert [reward.workers for reward in run.rewards] == [1, 1]
