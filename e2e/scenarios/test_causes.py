"""Each cause is in status.lastFailure and in a condition, as one sentence, within 60 s.

docs/causes.md has a row for each test.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

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
from grpo_scenarios.measuring import REPORTED_WITHIN_SECONDS, CauseMeasurement, measure_causes
from grpo_scenarios.namespace import Namespace

pytestmark = pytest.mark.cluster

MATRIX = {
    *("oom-rank", "dataset-without-column", "empty-dataset", "reward-module-missing", "fleet-lost"),
    *("engine-never-ready", "reward-crashing", "gradient-not-finite", "wrong-model-path"),
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
