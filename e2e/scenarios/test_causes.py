"""Each cause is in status.lastFailure and in a condition, as one sentence, within 60 s.

docs/causes.md has a row for each test.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.config import config_map as config_map_of
from grpo_operator.children.frozen_job import FrozenJob
from grpo_operator.children.pod import RUN_CONFIG_KEY
from grpo_scenarios.causes import (
    BROKEN_CLAIM,
    HUGE_CLAIM,
    PRESENT,
    QUOTA_GPUS,
    SMALL_CLAIM,
    TRAINER_ONLY,
    WITH_ENGINE,
    WITHOUT_PROCESSES,
    Cause,
)
from grpo_scenarios.faults import claim_of, config_map, quota, sidecar_injector, small_volume, volume
from grpo_scenarios.measuring import REPORTED_WITHIN_SECONDS, CauseMeasurement, measure_causes, print_row
from grpo_scenarios.namespace import Namespace

pytestmark = pytest.mark.cluster

MATRIX = {
    *("oom-rank", "dataset-without-column", "empty-dataset", "reward-module-missing", "fleet-lost"),
    *("engine-never-ready", "reward-crashing", "gradient-not-finite"),
}
"""Causes that come the same way as another one, and whose sentences other tests cover."""
EMPTY_REASONS = {"", "Error", "Unknown", "UnexpectedError"}
"""Reasons that explain nothing."""


@pytest.fixture(scope="module")
def measured(
    namespace: Namespace, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, CauseMeasurement]]:
    """What the jobs of the selected tests reported. Those without processes run first, all at once."""
    selected = {item.callspec.params["cause"].slug for item in request.session.items if _is_ours(item)}
    folder = tmp_path_factory.mktemp("webhook")
    with ExitStack() as stack:
        namespace.apply(
            quota(gpus=QUOTA_GPUS),
            claim_of(HUGE_CLAIM, storage="900Ti"),
            *(config_map(name, data) for name, data in PRESENT.items()),
        )
        stack.enter_context(volume(namespace, BROKEN_CLAIM, path=Path("/nowhere/at/all")))
        stack.enter_context(small_volume(namespace, SMALL_CLAIM, size="600k"))
        stack.enter_context(sidecar_injector(namespace, "pod-security", folder=folder))
        found = measure_causes(
            namespace, [c for c in WITHOUT_PROCESSES if c.slug in selected], at_once=len(WITHOUT_PROCESSES)
        )
        found |= measure_causes(namespace, [c for c in TRAINER_ONLY if c.slug in selected], at_once=2)
        found |= measure_causes(namespace, [c for c in WITH_ENGINE if c.slug in selected], at_once=2)
        yield found


def _is_ours(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "measured" in item.fixturenames


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(cause, id=cause.slug, marks=pytest.mark.matrix if cause.slug in MATRIX else ())
        for cause in (*WITHOUT_PROCESSES, *TRAINER_ONLY, *WITH_ENGINE)
    ],
)
def test_the_cause_is_reported_within_a_minute(cause: Cause, measured: dict[str, CauseMeasurement]) -> None:
    seen = measured[cause.slug]
    assert seen.is_in_failure, seen.failure
    assert seen.is_in_condition, seen.status.get("conditions")
    assert seen.seconds is not None and seen.seconds <= REPORTED_WITHIN_SECONDS
    assert seen.failure["reason"] not in EMPTY_REASONS
    has_ended = seen.status["phase"] == "Failed"
    assert has_ended == cause.is_end, seen.status["phase"]


def test_a_configuration_of_another_release_ends_the_job_with_both_versions(namespace: Namespace) -> None:
    """An operator of another release wrote the RunConfig, and this one took over."""
    cause = Cause(
        "other-release",
        {},
        "UserError",
        ("RunConfig has schemaVersion 99 but this side speaks 1", "use an operator and a runtime image"),
        condition="Failed",
    )
    namespace.scale_operator(0)
    namespace.apply(cause.job)
    job = namespace.job(cause.slug)
    frozen = FrozenJob.freeze(
        namespace=namespace.name,
        job=cause.slug,
        uid=job["metadata"]["uid"],
        spec=GRPOJobSpec.from_object(job["spec"]),
        image=namespace.target.runtime_image,
    )
    written = config_map_of(frozen).body
    written["data"][RUN_CONFIG_KEY] = json.dumps(frozen.config.to_object() | {"schemaVersion": 99})
    namespace.apply(written)
    namespace.scale_operator(1)
    started = datetime.now(UTC)
    seen = CauseMeasurement(cause, started)

    def is_reported() -> bool:
        seen.status = namespace.status(cause.slug)
        return seen.is_reported

    namespace.wait_until(is_reported, "the cause", timeout_seconds=REPORTED_WITHIN_SECONDS)
    seen.seconds = seen.after_apply = (datetime.now(UTC) - started).total_seconds()
    print_row(seen)
    assert seen.seconds <= REPORTED_WITHIN_SECONDS
    assert seen.failure["exitCode"] == ExitCode.USER_ERROR
    namespace.kubectl("delete", "grpojob", cause.slug, "--wait=false")
